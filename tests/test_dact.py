"""dact_cast_transpose_dbias, dact_quantize_transpose_dbias: an activation's gradient, cast and summed."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from act_args import FORMS, activations, case_id, cases_of, dact_args, gradient_for, operands
from cases import (
    ACTS,
    DACT_OPS,
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

ops = pytest.mark.parametrize("op", DACT_OPS)
forms = pytest.mark.parametrize("form", FORMS)
TILES = [(1, 1), (7, 130), (17, 33), (64, 15), (65, 257), (129, 16), (80, 256)]


def check(backend, op, form, shape, dtype, fmt, scale=1.7, make=activations):
    x, act, up = operands(form, shape, lambda s, seed: make(s, dtype, seed))
    g = gradient_for(x, act, up)
    return assert_matches_reference(backend, op, *dact_args(op, g, x, act, up, fmt, scale))


@pytest.mark.parametrize("op, form, shape, dtype, fmt", cases_of(DACT_OPS), ids=case_id)
def test_bytes_shapes(backend, op, form, shape, dtype, fmt):
    q = check(backend, op, form, shape, dtype, fmt)[0]
    halves = 2 if FORMS[form] == "swiglu" else 1
    assert q.shape == (*shape[:-1], halves * shape[-1]) and q.is_contiguous()


@pytest.mark.parametrize("shape", [*LARGE_SHAPES, *OPERATOR_SHAPES], ids=shape_id)
def test_bytes_operator_shapes(backend, shape):
    form = "gate_up" if shape in LARGE_SHAPES else "silu"
    check(backend, "dact_quantize_transpose_dbias", form, shape, torch.bfloat16, E5M2)


@forms
@dtypes
@pytest.mark.parametrize("values", SPECIAL_VALUES)
def test_bytes_special_values(backend, form, values, dtype):
    check(backend, DACT_OPS[1], form, (37, 61), dtype, E5M2, 0.7, lambda s, d, seed: SPECIAL_VALUES[values](s, d))


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bytes_every_pattern(backend, act, dtype):
    """All 65,536 values of a 16-bit dtype as x, then as the gradient."""
    patterns, others = all_patterns(dtype), activations((256, 256), dtype, 3)
    up = normal((256, 256), dtype, 4) if act == "swiglu" else None
    for g, x in ((others, patterns), (patterns, others)):
        assert_matches_reference(backend, DACT_OPS[0], g, x, scalar(1.7), E5M2, act, up)


@pytest.mark.parametrize("act", ["gelu_tanh", "silu"])
@pytest.mark.parametrize("low, high", [(-1, 1), (-20, 20), (-120, 120)])
def test_bytes_dense_fp32(backend, act, low, high):
    x = torch.linspace(low, high, 10_001)
    for scale in (1.0, 2.0**20):
        args = (torch.ones_like(x), x, scalar(scale), E4M3, act, None)
        assert_matches_reference(backend, DACT_OPS[0], *args)


@pytest.mark.parametrize("form", ["gelu_tanh", "gate_up"])
@formats
@pytest.mark.parametrize("pow2, margin", [(True, 0), (False, 1), (True, 64)])
def test_bytes_rules(backend, form, fmt, pow2, margin):
    x, act, up = operands(form, (37, 61), lambda s, seed: activations(s, torch.bfloat16, seed))
    g = gradient_for(x, act, up)
    assert_matches_reference(backend, DACT_OPS[1], g, x, fmt, act, up, pow2, margin)


@pytest.mark.parametrize("scale", SCALES)
def test_bytes_scales(backend, scale):
    check(backend, DACT_OPS[0], "gate_up", (20, 45), torch.float32, E5M2, SCALES[scale])


@ops
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["g", "x", "up"])
def test_V4_non_finite_data_poisons_scale_inv(backend, op, value, place):
    operands = {name: torch.ones(40, 50) for name in ("g", "x", "up")}
    operands[place][39, 49] = value
    args = dact_args(op, operands["g"], operands["x"], "swiglu", operands["up"], E5M2)
    results = assert_matches_reference(backend, op, *args)
    assert results[1].view(torch.int32).item() == 0x7FC00000


def test_V2_a_zero_gradient_stays_zero(backend):
    q, scale_inv, *_ = backend.run(DACT_OPS[1], torch.zeros(20, 30), torch.ones(20, 60), E5M2, "swiglu", None)
    assert not q.to(torch.float32).any() and scale_inv.item() == 1.0


@pytest.mark.parametrize("operand", ["g", "x", "up"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_S3_S4_S5_layouts(backend, operand, layout):
    """S3: the gradient that .sum().backward() hands over is an expanded scalar."""
    op = DACT_OPS[0]
    view = LAYOUTS[layout](lambda shape: activations(shape, torch.bfloat16))
    made = {name: activations(tuple(view.shape), torch.bfloat16, ord(name[0])) for name in ("g", "x", "up")}
    made[operand] = view
    assert_matches_reference(backend, op, *dact_args(op, made["g"], made["x"], "swiglu", made["up"], E5M2))


@given(
    x=high_precision_views(),
    op=st.sampled_from(DACT_OPS),
    act=st.sampled_from(ACTS),
    fmt=st.sampled_from([E4M3, E5M2]),
)
def test_bytes_any_view(backend, x, op, act, fmt):
    up = x.flip(0) if act == "swiglu" and x.shape[-1] % 2 else None
    assert_matches_reference(backend, op, *dact_args(op, gradient_for(x, act, up), x, act, up, fmt))


@ops
@pytest.mark.parametrize("form", ["silu", "gate_up"])
@pytest.mark.parametrize("rows, cols", TILES)
def test_S8_transposed_store_equals_plain_transpose(backend, op, form, rows, cols):
    q, _, q_t, *_ = check(backend, op, form, (rows, cols), torch.float16, E5M2)
    assert_same_bytes(q_t, reference.transpose(q), f"{op} q_t")


@ops
@pytest.mark.parametrize("rows", [1, 7, 17, 24, 50])
def test_S9_padding_is_written(backend, op, rows):
    """The outputs' memory held 0xAA before: what is not written shows."""
    g, x = normal((rows, 33), torch.float32), activations((rows, 66), torch.float32)
    for _ in range(4):
        held = [torch.full((66, -(-rows // 16) * 16), 0xAA, dtype=torch.uint8) for _ in range(8)]
        del held
        q_t = backend.run(op, *dact_args(op, g, x, "swiglu", None, E5M2))[2]
        assert not q_t[:, rows:].view(torch.uint8).any()


@ops
def test_S10_leading_dims_flatten(backend, op):
    g, x = normal((3, 8, 20), torch.bfloat16), activations((3, 8, 40), torch.bfloat16)
    flat = backend.run(op, *dact_args(op, g.reshape(24, 20), x.reshape(24, 40), "swiglu", None, E5M2))
    for lead in [(3, 8), (1, 24)]:
        args = dact_args(op, g.reshape(*lead, 20), x.reshape(*lead, 40), "swiglu", None, E5M2)
        results = backend.run(op, *args)
        assert results[0].shape == (*lead, 40)
        for got, want in zip(results, flat):
            assert_same_bytes(got.reshape(want.shape), want, op)


@pytest.mark.parametrize("form", ["gelu_tanh", "gate_up"])
@pytest.mark.parametrize("rows", [1, 65, 2500])
def test_dbias_is_the_same_from_run_to_run(backend, thread_count, form, rows):
    x, act, up = operands(form, (rows, 60), lambda s, seed: activations(s, torch.bfloat16, seed))
    args = dact_args(DACT_OPS[0], gradient_for(x, act, up), x, act, up, E5M2)
    want = backend.run(DACT_OPS[0], *args)[3]
    for threads in (2, 3):
        torch.set_num_threads(threads)
        got = assert_matches_reference(backend, DACT_OPS[0], *args)[3]
        assert_same_bytes(got, want, f"dbias with {threads} threads")
