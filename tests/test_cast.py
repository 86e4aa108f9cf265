"""cast, cast_transpose, cast_transpose_dbias: the scale is given."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import (
    CAST_OPS,
    E4M3,
    E5M2,
    LARGE_SHAPES,
    OPERATOR_SHAPES,
    SCALES,
    SHAPES,
    SPECIAL_VALUES,
    all_patterns,
    fp32_boundaries,
    normal,
    scalar,
    shape_id,
)
from conftest import assert_matches_reference, assert_same_bytes, dtypes, formats
from layouts import LAYOUTS, high_precision_views
from transcast import reference

ops = pytest.mark.parametrize("op", CAST_OPS)


@ops
@formats
@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=shape_id)
def test_bytes_shapes(backend, op, shape, dtype, fmt):
    assert_matches_reference(backend, op, normal(shape, dtype), scalar(1.7), fmt)


@ops
@pytest.mark.parametrize("dtype, fmt", [(torch.float32, E5M2), (torch.bfloat16, E4M3)])
@pytest.mark.parametrize("shape", LARGE_SHAPES, ids=shape_id)
def test_bytes_large(backend, op, shape, dtype, fmt):
    assert_matches_reference(backend, op, normal(shape, dtype), scalar(1.7), fmt)


@pytest.mark.parametrize("shape", OPERATOR_SHAPES, ids=shape_id)
def test_bytes_operator_shapes(backend, shape):
    x = normal(shape, torch.bfloat16)
    assert_matches_reference(backend, "cast_transpose_dbias", x, scalar(1.7), E5M2)


@formats
@dtypes
def test_bytes_no_dims(backend, dtype, fmt):
    assert_matches_reference(backend, "cast", torch.tensor(3.3, dtype=dtype), scalar(1.7), fmt)


@ops
@formats
@dtypes
@pytest.mark.parametrize("values", SPECIAL_VALUES)
def test_bytes_special_values(backend, op, values, dtype, fmt):
    assert_matches_reference(backend, op, SPECIAL_VALUES[values]((37, 61), dtype), scalar(0.7), fmt)


@ops
@formats
@dtypes
@pytest.mark.parametrize("scale", SCALES)
def test_bytes_scales(backend, op, scale, dtype, fmt):
    x = torch.cat([make((3, 50), dtype) for make in SPECIAL_VALUES.values()] + [normal((9, 50), dtype)])
    assert_matches_reference(backend, op, x, scalar(SCALES[scale]), fmt)
    assert_matches_reference(backend, op, normal((20, 45), dtype), scalar(SCALES[scale]), fmt)


@formats
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", SCALES)
def test_bytes_every_pattern(backend, scale, dtype, fmt):
    """All 65,536 values of a 16-bit dtype, where vectors hold them and where tails do."""
    patterns, factor = all_patterns(dtype), scalar(SCALES[scale])
    assert_matches_reference(backend, "cast", patterns, factor, fmt)
    assert_matches_reference(backend, "cast_transpose", patterns, factor, fmt)
    assert_matches_reference(backend, "cast", patterns.reshape(8192, 8).t(), factor, fmt)
    assert_matches_reference(backend, "cast_transpose_dbias", patterns.reshape(-1, 4), factor, fmt)


@ops
@formats
@pytest.mark.parametrize("scale", ["one", "power_of_two", "odd", "third", "small", "max", "min"])
def test_bytes_where_rounding_decides(backend, op, scale, fmt):
    """FP32 values around every code and midpoint; with a scale, around what it maps onto them."""
    boundaries = fp32_boundaries(fmt)
    before_scaling = (boundaries.to(torch.float64) / SCALES[scale]).to(torch.float32)
    for x in (boundaries, before_scaling):
        assert_matches_reference(backend, op, x, scalar(SCALES[scale]), fmt)


@ops
@pytest.mark.parametrize("bits", [0x7FC00000, 0x7F800001, -1, -0x3FFFFF])
def test_bytes_nan_scale_and_nan_data_of_any_payload(backend, op, bits):
    nan = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    assert torch.isnan(nan)
    assert_matches_reference(backend, op, normal((5, 70), torch.float32), nan, E4M3)
    x = normal((5, 70), torch.float32)
    x[3, 64] = nan
    assert_matches_reference(backend, op, x, scalar(1.5), E5M2)


@ops
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=shape_id)
def test_S10_scale_shapes(backend, op, shape):
    results = assert_matches_reference(backend, op, normal((4, 5), torch.float32), scalar(1.7, shape), E4M3)
    assert results[1].shape == ()


@ops
@dtypes
@pytest.mark.parametrize("layout", LAYOUTS)
def test_S3_S4_S5_layouts(backend, op, layout, dtype):
    x = LAYOUTS[layout](lambda shape: normal(shape, dtype))
    q = assert_matches_reference(backend, op, x, scalar(1.7), E4M3)[0]
    assert q.is_contiguous()
    for got, want in zip(
        backend.run(op, x, scalar(1.7), E5M2), backend.run(op, x.contiguous(), scalar(1.7), E5M2)
    ):
        assert_same_bytes(got, want, f"{op} of a view")


@given(
    x=high_precision_views(),
    op=st.sampled_from(CAST_OPS),
    fmt=st.sampled_from([E4M3, E5M2]),
    scale=st.floats(width=32, allow_nan=True, allow_infinity=True),
)
def test_bytes_any_view(backend, x, op, fmt, scale):
    assert_matches_reference(backend, op, x, scalar(scale), fmt)


@formats
def test_V1_overflow_saturates(backend, fmt):
    largest = {E4M3: 448.0, E5M2: 57344.0}[fmt]
    x = torch.tensor([1e5, 1e30, 3.4e38, math.inf, 1e4 if fmt == E4M3 else 1e6])
    q, _, _ = backend.run("cast", torch.cat([x, -x]), scalar(1.0), fmt)
    assert q.to(torch.float32).tolist() == [largest] * 5 + [-largest] * 5


@ops
def test_V2_zeros_stay_zeros(backend, op):
    q, scale_inv, *_, amax = backend.run(op, torch.zeros(20, 30), scalar(2.0), E4M3)
    assert (q.view(torch.uint8).any().item(), scale_inv.item(), amax.item()) == (False, 0.5, 0.0)


@ops
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_V4_non_finite_data_poisons_scale_inv(backend, op, value):
    x = torch.ones(40, 50)
    x[39, 49] = value
    results = assert_matches_reference(backend, op, x, scalar(1.0), E4M3)
    assert results[1].view(torch.int32).item() == 0x7FC00000


@pytest.mark.parametrize("op", CAST_OPS[1:])
@pytest.mark.parametrize("rows", [1, 7, 16, 17, 63, 64, 65, 129])
@pytest.mark.parametrize("cols", [1, 15, 33, 128, 130, 255, 256, 300])
def test_S8_transposed_store_equals_plain_transpose(backend, op, rows, cols):
    q, _, q_t, *_ = backend.run(op, normal((rows, cols), torch.bfloat16), scalar(1.7), E4M3)
    assert_same_bytes(q_t, reference.transpose(q), f"{op} q_t")
    assert_same_bytes(q_t, backend.run("transpose", q), "transpose")


@pytest.mark.parametrize("op", CAST_OPS[1:])
@pytest.mark.parametrize("rows", [1, 7, 17, 24, 50])
def test_S9_padding_is_written(backend, op, rows):
    """The outputs' memory held 0xAA before: what is not written shows."""
    x = normal((rows, 33), torch.float32)
    for _ in range(4):
        held = [torch.full((33, -(-rows // 16) * 16), 0xAA, dtype=torch.uint8) for _ in range(8)]
        del held
        q_t = backend.run(op, x, scalar(1.7), E4M3)[2]
        assert not q_t[:, rows:].view(torch.uint8).any()


@ops
def test_S10_leading_dims_flatten(backend, op):
    x = normal((3, 8, 40), torch.bfloat16)
    flat = backend.run(op, x.reshape(24, 40), scalar(1.7), E4M3)
    for shape in [(3, 8, 40), (1, 24, 40)]:
        results = backend.run(op, x.reshape(shape), scalar(1.7), E4M3)
        assert results[0].shape == shape
        for got, want in zip(results, flat):
            assert_same_bytes(got.reshape(want.shape), want, op)


@dtypes
@pytest.mark.parametrize("rows", [1, 2, 65, 1023, 1024, 1025, 2500])
def test_dbias_is_the_same_from_run_to_run(backend, thread_count, dtype, rows):
    x = normal((rows, 300), dtype)
    want = backend.run("cast_transpose_dbias", x, scalar(1.0), E5M2)[3]
    for threads in (1, 2, 3, 2, 1):
        torch.set_num_threads(threads)
        got = assert_matches_reference(backend, "cast_transpose_dbias", x, scalar(1.0), E5M2)[3]
        assert_same_bytes(got, want, f"dbias with {threads} threads")
    if rows == 1:
        assert_same_bytes(want, x[0].to(torch.float32), "dbias of one row")
