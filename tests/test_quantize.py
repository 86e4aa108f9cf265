"""quantize, quantize_transpose, quantize_transpose_dbias: the scale comes from the data's own amax."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import (
    E4M3,
    E5M2,
    LARGE_SHAPES,
    OPERATOR_SHAPES,
    QUANTIZE_OPS,
    SHAPES,
    SPECIAL_VALUES,
    all_patterns,
    normal,
    scalar,
    shape_id,
)
from conftest import assert_matches_reference, assert_same_bytes, dtypes, formats
from layouts import LAYOUTS, high_precision_views
from transcast import reference

ops = pytest.mark.parametrize("op", QUANTIZE_OPS)
RULES = [(False, 0), (True, 0), (False, 1), (True, 3), (False, -2), (True, 64), (False, -64)]
rules = pytest.mark.parametrize("pow2, margin", RULES)


@ops
@formats
@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
def test_bytes_shapes(backend, op, shape, dtype, fmt):
    assert_matches_reference(backend, op, normal(shape, dtype), fmt)


@ops
@pytest.mark.parametrize("dtype, fmt", [(torch.float32, E4M3), (torch.bfloat16, E5M2)])
@pytest.mark.parametrize("shape", LARGE_SHAPES, ids=shape_id)
def test_bytes_large(backend, op, shape, dtype, fmt):
    assert_matches_reference(backend, op, normal(shape, dtype), fmt)


@pytest.mark.parametrize("shape", OPERATOR_SHAPES, ids=shape_id)
def test_bytes_operator_shapes(backend, shape):
    x = normal(shape, torch.bfloat16)
    assert_matches_reference(backend, "quantize_transpose_dbias", x, E5M2)


@dtypes
def test_bytes_no_dims(backend, dtype):
    assert_matches_reference(backend, "quantize", torch.tensor(3.3, dtype=dtype), E4M3)


@ops
@rules
@formats
@dtypes
def test_bytes_rules(backend, op, dtype, fmt, pow2, margin):
    assert_matches_reference(backend, op, normal((37, 61), dtype), fmt, pow2, margin)


@ops
@formats
@dtypes
@pytest.mark.parametrize("values", SPECIAL_VALUES)
def test_bytes_special_values(backend, op, values, dtype, fmt):
    x = SPECIAL_VALUES[values]((37, 61), dtype)
    assert_matches_reference(backend, op, x, fmt)
    assert_matches_reference(backend, op, x, fmt, True, 1)


@ops
@formats
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bytes_every_pattern(backend, op, dtype, fmt):
    """All finite values of a 16-bit dtype, in groups of one exponent range so that each range is resolved."""
    patterns = all_patterns(dtype).flatten()
    magnitudes = patterns[patterns >= 0].sort().values
    magnitudes = magnitudes[torch.isfinite(magnitudes)]
    for group in magnitudes.split(2048):
        x = torch.stack([group, -group])
        assert_matches_reference(backend, op, x, fmt)
        assert_matches_reference(backend, op, x, fmt, True)


@rules
@formats
def test_V5_scale_of_any_amax(backend, fmt, pow2, margin):
    """scale_inv is all that shows of the scale: compared for amax values over the whole range of FP32."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 0x7F800000, (300,), generator=generator).to(torch.int32)
    special = [
        448.0,
        57344.0,
        2.0**-126,
        2.0**127,
        1e-38,
        1e-40,
        1e-45,
        5.26e-36,
        6.7e-34,
        3.4028234e38,
        7.0,
        6.9999995,
    ]
    for amax in [*bits.view(torch.float32).tolist(), *special]:
        assert_matches_reference(backend, "quantize", torch.tensor([amax, -amax / 3, 0.0]), fmt, pow2, margin)


def test_V5_amax_at_the_format_max_gives_scale_one(backend):
    for fmt, largest in ((E4M3, 448.0), (E5M2, 57344.0)):
        _, scale_inv = backend.run("quantize", torch.tensor([1.0, -largest]), fmt)
        assert scale_inv.item() == 1.0


@ops
@formats
def test_V2_zeros_give_scale_one(backend, op, fmt):
    q, scale_inv, *_ = backend.run(op, torch.zeros(20, 30), fmt, True, 3)
    assert (q.view(torch.uint8).any().item(), scale_inv.item()) == (False, 1.0)


@ops
@pytest.mark.parametrize("amax", [1e-38, 1e-20, 2.0**-126, 2.0**-133])
def test_V3_tiny_data_is_not_flushed(backend, op, amax):
    x = torch.tensor([[amax, -amax / 2, amax / 4]])
    q, scale_inv, *_ = assert_matches_reference(backend, op, x, E4M3)
    assert math.isfinite(scale_inv.item()) and scale_inv.item() >= 2.0**-126
    back = backend.run("dequantize", q, scale_inv, torch.float32)
    assert torch.allclose(back, x, rtol=2.0**-4, atol=0)


@ops
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_V4_non_finite_data_shows(backend, op, value):
    x = torch.ones(40, 50)
    x[17, 3] = value
    results = assert_matches_reference(backend, op, x, E4M3)
    inverses = [results[1]] + ([results[3]] if op != "quantize" else [])
    assert all(t.view(torch.int32).item() == 0x7FC00000 for t in inverses)
    assert results[0][0, 0].to(torch.float32).item() == 1.0  # the scale itself was 1
    assert torch.isnan(backend.run("dequantize", results[0], results[1], torch.bfloat16)).all()


@ops
@dtypes
@pytest.mark.parametrize("layout", LAYOUTS)
def test_S3_S4_S5_layouts(backend, op, layout, dtype):
    x = LAYOUTS[layout](lambda shape: normal(shape, dtype))
    q = assert_matches_reference(backend, op, x, E4M3)[0]
    assert q.is_contiguous()
    for got, want in zip(backend.run(op, x, E5M2), backend.run(op, x.contiguous(), E5M2)):
        assert_same_bytes(got, want, f"{op} of a view")


@given(
    x=high_precision_views(),
    op=st.sampled_from(QUANTIZE_OPS),
    fmt=st.sampled_from([E4M3, E5M2]),
    pow2=st.booleans(),
    margin=st.integers(-64, 64),
)
def test_bytes_any_view(backend, x, op, fmt, pow2, margin):
    assert_matches_reference(backend, op, x, fmt, pow2, margin)


@pytest.mark.parametrize("op", QUANTIZE_OPS[1:])
@pytest.mark.parametrize("rows, cols", [(1, 1), (7, 130), (17, 33), (64, 15), (65, 129), (129, 16)])
def test_S8_transposed_store_equals_plain_transpose(backend, op, rows, cols):
    q, scale_inv, q_t, scale_inv_t, *_ = backend.run(op, normal((rows, cols), torch.float16), E4M3)
    assert_same_bytes(q_t, reference.transpose(q), f"{op} q_t")
    assert_same_bytes(scale_inv_t, scale_inv, f"{op} scale_inv_t")


@pytest.mark.parametrize("op", QUANTIZE_OPS[1:])
@pytest.mark.parametrize("rows", [1, 7, 17, 24, 50])
def test_S9_padding_is_written(backend, op, rows):
    """The outputs' memory held 0xAA before: what is not written shows."""
    x = normal((rows, 33), torch.float32)
    for _ in range(4):
        held = [torch.full((33, -(-rows // 16) * 16), 0xAA, dtype=torch.uint8) for _ in range(8)]
        del held
        q_t = backend.run(op, x, E4M3)[2]
        assert not q_t[:, rows:].view(torch.uint8).any()


@ops
def test_S10_leading_dims_flatten(backend, op):
    x = normal((3, 8, 40), torch.bfloat16)
    flat = backend.run(op, x.reshape(24, 40), E4M3)
    for shape in [(3, 8, 40), (1, 24, 40)]:
        for got, want in zip(backend.run(op, x.reshape(shape), E4M3), flat):
            assert_same_bytes(got.reshape(want.shape), want, op)


@ops
@formats
def test_quantize_is_a_cast_with_the_scale_of_its_amax(backend, op, fmt):
    x = normal((33, 70), torch.bfloat16)
    scale = reference.scale_from_amax(backend.run("amax", x), fmt)
    q, scale_inv, *_ = backend.run(op, x, fmt)
    cast_q, cast_scale_inv, _ = backend.run("cast", x, scalar(scale.item()), fmt)
    assert_same_bytes(q, cast_q, op)
    assert_same_bytes(scale_inv, cast_scale_inv, op)
