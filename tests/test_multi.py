"""multi_quantize_transpose: quantize_transpose for each tensor of a list."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import transcast as tc
from cases import DTYPES, E4M3, E5M2, FORMATS, SHAPES, SPECIAL_VALUES, normal
from conftest import assert_matches_reference, assert_same_bytes, formats
from layouts import LAYOUTS, high_precision_views

OP = "multi_quantize_transpose"


@formats
@pytest.mark.parametrize("pow2, margin", [(False, 0), (True, 1)])
def test_bytes_shapes_and_dtypes_mixed(backend, fmt, pow2, margin):
    kinds = list(DTYPES.values())
    xs = [normal(shape, kinds[i % 3], seed=i) for i, shape in enumerate(SHAPES)]
    assert_matches_reference(backend, OP, xs, fmt, pow2, margin)


@formats
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_bytes_one_tensor(backend, dtype, fmt):
    x = normal((129, 130), dtype)
    results = assert_matches_reference(backend, OP, [x], fmt)
    for (got,), want in zip(results, backend.run("quantize_transpose", x, fmt)):
        assert_same_bytes(got, want, "one tensor alone")


@pytest.mark.parametrize("count", [2, 63, 65, 200])
def test_bytes_many_tensors(backend, count):
    """More than the arguments of one kernel hold; each of another size and magnitude."""
    shapes = [(1 + i % 37, 1 + i * 7 % 50) for i in range(count)]
    xs = [normal(shape, torch.bfloat16, i) * 2.0 ** (i % 60 - 30) for i, shape in enumerate(shapes)]
    assert_matches_reference(backend, OP, xs, E4M3)


def test_bytes_sizes_far_apart(backend):
    xs = [normal(shape, torch.bfloat16) for shape in [(1,), (700, 520), (3, 1), (0, 8), (1, 5000), (2500, 2)]]
    assert_matches_reference(backend, OP, xs, E5M2)
    assert_matches_reference(backend, OP, xs[::-1], E5M2)


def test_bytes_special_values(backend):
    xs = [make((37, 61), dtype) for make in SPECIAL_VALUES.values() for dtype in DTYPES.values()]
    for fmt in FORMATS.values():
        assert_matches_reference(backend, OP, xs, fmt)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_S3_S4_S5_layouts(backend, dtype):
    xs = [make(lambda shape: normal(shape, dtype)) for make in LAYOUTS.values()]
    assert_matches_reference(backend, OP, xs, E4M3)


@settings(max_examples=30)
@given(xs=st.lists(high_precision_views(), max_size=4), pow2=st.booleans(), margin=st.integers(-64, 64))
def test_bytes_any_views(backend, xs, pow2, margin):
    assert_matches_reference(backend, OP, xs, E4M3, pow2, margin)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_V4_only_the_tensor_that_holds_it_is_poisoned(backend, value):
    xs = [normal((20, 30), torch.float32, i) for i in range(5)]
    xs[3][19, 29] = value
    _, scale_inv, _, scale_inv_t = assert_matches_reference(backend, OP, xs, E4M3)
    assert [math.isnan(s.item()) for s in scale_inv] == [i == 3 for i in range(5)]
    assert [math.isnan(s.item()) for s in scale_inv_t] == [i == 3 for i in range(5)]


def test_S9_padding_is_written(backend):
    """The outputs' memory held 0xAA before: what is not written shows."""
    xs = [normal((rows, 33), torch.float32) for rows in (1, 7, 17, 24, 50)]
    for _ in range(4):
        held = [torch.full((33, 16 * n), 0xAA, dtype=torch.uint8) for n in (1, 2, 4) for _ in range(8)]
        del held
        for x, q_t in zip(xs, backend.run(OP, xs, E4M3)[2]):
            assert not q_t[:, len(x) :].view(torch.uint8).any()


def test_one_tensor_several_times(backend):
    """Tied weights: each place of the list gets memory of its own."""
    x = normal((17, 33), torch.bfloat16)
    q = assert_matches_reference(backend, OP, [x, x, x.t()], E4M3)[0]
    assert len({t.data_ptr() for t in q}) == 3


def test_an_empty_list_gives_empty_lists(backend):
    assert getattr(backend.ops, OP)([], E4M3) == ([], [], [], [])
    with pytest.raises(ValueError, match="dtype must be float8_e4m3fn"):
        getattr(backend.ops, OP)([], torch.float16)


def test_wrapper_returns_one_named_tuple_per_tensor():
    xs = [normal((5, 6), torch.bfloat16), normal((3,), torch.float32)]
    got = tc.multi_quantize_transpose(xs, E4M3, pow2=True, margin=1)
    assert [type(one) for one in got] == [type(tc.quantize_transpose(xs[0], E4M3))] * 2
    for one, x in zip(got, xs):
        for name, g, w in zip(one._fields, one, tc.quantize_transpose(x, E4M3, pow2=True, margin=1)):
            assert_same_bytes(g, w, name)
    assert tc.multi_quantize_transpose((), E4M3) == []
