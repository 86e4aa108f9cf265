"""act_cast, act_quantize and their transposing forms: an activation and its cast in one pass."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from act_args import FORMS, act_args, activations, case_id, cases_of, operands
from cases import (
    ACT_OPS,
    ACTS,
    E4M3,
    E5M2,
    LARGE_SHAPES,
    OPERATOR_SHAPES,
    SCALES,
    SPECIAL_VALUES,
    all_patterns,
    normal,
    scalar,
    shape_id,
)
from conftest import assert_matches_reference, assert_same_bytes, dtypes, formats
from layouts import LAYOUTS, high_precision_views
from transcast import reference

ops = pytest.mark.parametrize("op", ACT_OPS)
forms = pytest.mark.parametrize("form", FORMS)
TILES = [(1, 1), (7, 130), (17, 33), (64, 15), (65, 257), (129, 16), (80, 256)]


def check(backend, op, form, shape, dtype, fmt, scale=1.7, make=activations):
    x, act, up = operands(form, shape, lambda s, seed: make(s, dtype, seed))
    return assert_matches_reference(backend, op, *act_args(op, x, act, up, fmt, scale))


@pytest.mark.parametrize("op, form, shape, dtype, fmt", cases_of(ACT_OPS), ids=case_id)
def test_bytes_shapes(backend, op, form, shape, dtype, fmt):
    q = check(backend, op, form, shape, dtype, fmt)[0]
    assert q.shape == shape and q.is_contiguous()


@pytest.mark.parametrize("shape", [*LARGE_SHAPES, *OPERATOR_SHAPES], ids=shape_id)
def test_bytes_operator_shapes(backend, shape):
    check(backend, "act_quantize_transpose", "gate_up", shape, torch.bfloat16, E4M3)


@pytest.mark.parametrize("form", ["gelu_tanh", "silu", "gate_and_up"])
def test_bytes_no_dims(backend, form):
    for op in ("act_cast", "act_quantize"):
        x, up = torch.tensor(3.3), torch.tensor(0.7) if form == "gate_and_up" else None
        assert_matches_reference(backend, op, *act_args(op, x, FORMS[form], up, E4M3))


@pytest.mark.parametrize("op", ["act_cast", "act_quantize_transpose"])
@forms
@dtypes
@pytest.mark.parametrize("values", SPECIAL_VALUES)
def test_bytes_special_values(backend, op, form, values, dtype):
    check(backend, op, form, (37, 61), dtype, E4M3, 0.7, lambda s, d, seed: SPECIAL_VALUES[values](s, d))


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("scale", ["one", "large", "max"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bytes_every_pattern(backend, act, scale, dtype):
    """All 65,536 values of a 16-bit dtype, in vectors and in tails."""
    x = all_patterns(dtype)
    up = normal((256, 256), dtype).sign() if act == "swiglu" else None
    assert_matches_reference(backend, "act_cast", x, scalar(SCALES[scale]), E5M2, act, up)
    narrow = [None if t is None else t.reshape(-1, 4) for t in (x, up)]
    args = narrow[0], scalar(SCALES[scale]), E4M3, act, narrow[1]
    assert_matches_reference(backend, "act_cast_transpose", *args)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bytes_every_pattern_of_up(backend, dtype):
    gate, up = activations((256, 256), dtype), all_patterns(dtype)
    assert_matches_reference(backend, "act_cast", gate, scalar(1.7), E4M3, "swiglu", up)
    finite = torch.where(torch.isfinite(up), up, torch.zeros_like(up))
    assert_matches_reference(backend, "act_quantize", gate, E4M3, "swiglu", finite)


@pytest.mark.parametrize("act", ["gelu_tanh", "silu"])
@pytest.mark.parametrize("low, high", [(-1, 1), (-20, 20), (-120, 100), (-1e-37, 1e-37)])
def test_bytes_dense_fp32(backend, act, low, high):
    """Scales that bring every part of the range into the format's."""
    x = torch.linspace(low, high, 10_001)
    for scale in (1.0, 2.0**20, 2.0**100):
        assert_matches_reference(backend, "act_cast", x, scalar(scale), E4M3, act, None)


@pytest.mark.parametrize("op", ACT_OPS[2:])
@forms
@formats
@pytest.mark.parametrize("pow2, margin", [(True, 0), (False, 1), (True, 3), (False, -64), (True, 64)])
def test_bytes_rules(backend, op, form, fmt, pow2, margin):
    x, act, up = operands(form, (37, 61), lambda s, seed: activations(s, torch.bfloat16, seed))
    assert_matches_reference(backend, op, x, fmt, act, up, pow2, margin)


@pytest.mark.parametrize("op", ACT_OPS[:2])
@pytest.mark.parametrize("scale", SCALES)
def test_bytes_scales(backend, op, scale):
    check(backend, op, "gate_up", (20, 45), torch.float32, E5M2, SCALES[scale])


def test_the_activation_is_not_rounded_before_it_is_scaled(backend):
    # silu(1.34375) = 1.0657... BF16 would make it 1.0625, a tie between 1 and 1.125 that goes to even, 1.
    x = torch.tensor([1.34375], dtype=torch.bfloat16)
    assert torch.nn.functional.silu(x).item() == 1.0625
    q, _, amax = backend.run("act_cast", x, scalar(1.0), E4M3, "silu", None)
    assert q.to(torch.float32).item() == 1.125
    assert amax.item() == pytest.approx(1.0657362, rel=1e-6)


@ops
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["x", "up"])
def test_V4_non_finite_data_poisons_scale_inv(backend, op, value, place):
    x, up = torch.ones(40, 50), torch.ones(40, 50)
    (x if place == "x" else up)[39, 49] = value
    results = assert_matches_reference(backend, op, *act_args(op, x, "swiglu", up, E4M3))
    assert results[1].view(torch.int32).item() == 0x7FC00000


@ops
@pytest.mark.parametrize("act", ACTS)
def test_V2_zeros_stay_zeros(backend, op, act):
    q, scale_inv, *_ = backend.run(op, *act_args(op, torch.zeros(20, 30), act, None, E4M3, 2.0))
    assert not q.view(torch.uint8).any() and scale_inv.item() == (0.5 if "cast" in op else 1.0)


@pytest.mark.parametrize("op", ["act_cast", "act_quantize_transpose"])
@pytest.mark.parametrize("operand", ["x", "up", "gate_up"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_S3_S4_S5_layouts(backend, op, operand, layout):
    view = LAYOUTS[layout](lambda shape: activations(shape, torch.bfloat16))
    other = activations(tuple(view.shape), torch.bfloat16, 5)
    if operand == "gate_up":
        x, up = (view if view.shape[-1] % 2 == 0 else view[..., :-1]), None
    else:
        x, up = (view, other) if operand == "x" else (other, view)
    assert_matches_reference(backend, op, *act_args(op, x, "swiglu", up, E4M3))


@given(
    x=high_precision_views(),
    op=st.sampled_from(ACT_OPS),
    act=st.sampled_from(ACTS),
    fmt=st.sampled_from([E4M3, E5M2]),
)
def test_bytes_any_view(backend, x, op, act, fmt):
    up = None
    if act == "swiglu":
        up = x.flip(0) if x.shape[-1] % 2 else None
    assert_matches_reference(backend, op, *act_args(op, x, act, up, fmt))


@pytest.mark.parametrize("op", ["act_cast_transpose", "act_quantize_transpose"])
@pytest.mark.parametrize("rows, cols", TILES)
def test_S8_transposed_store_equals_plain_transpose(backend, op, rows, cols):
    x = activations((rows, 2 * cols), torch.float16)
    q, scale_inv, q_t, *rest = backend.run(op, *act_args(op, x, "swiglu", None, E4M3))
    assert_same_bytes(q_t, reference.transpose(q), f"{op} q_t")
    if op == "act_quantize_transpose":
        assert_same_bytes(rest[0], scale_inv, "scale_inv_t")


@pytest.mark.parametrize("op", ["act_cast_transpose", "act_quantize_transpose"])
@pytest.mark.parametrize("rows", [1, 7, 17, 24, 50])
def test_S9_padding_is_written(backend, op, rows):
    """The outputs' memory held 0xAA before: what is not written shows."""
    x = activations((rows, 33), torch.float32)
    for _ in range(4):
        held = [torch.full((33, -(-rows // 16) * 16), 0xAA, dtype=torch.uint8) for _ in range(8)]
        del held
        q_t = backend.run(op, *act_args(op, x, "silu", None, E4M3))[2]
        assert not q_t[:, rows:].view(torch.uint8).any()


@ops
def test_S10_leading_dims_flatten(backend, op):
    x = activations((3, 8, 40), torch.bfloat16)
    flat = backend.run(op, *act_args(op, x.reshape(24, 40), "swiglu", None, E4M3))
    for shape in [(3, 8, 40), (1, 24, 40)]:
        results = backend.run(op, *act_args(op, x.reshape(shape), "swiglu", None, E4M3))
        assert results[0].shape == (*shape[:-1], 20)
        for got, want in zip(results, flat):
            assert_same_bytes(got.reshape(want.shape), want, op)
