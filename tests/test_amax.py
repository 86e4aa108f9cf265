"""amax: largest magnitude, by its bits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given

from cases import EMPTY_SHAPES, LARGE_SHAPES, SHAPES, SPECIAL_VALUES, all_patterns, normal, shape_id
from conftest import assert_matches_reference, assert_same_bytes, dtypes
from layouts import LAYOUTS, high_precision_views
from transcast import reference



@dtypes
@pytest.mark.parametrize("shape", [(), *SHAPES, *LARGE_SHAPES], ids=shape_id)
def test_bytes_shapes(backend, shape, dtype):
    assert_matches_reference(backend, "amax", normal(shape, dtype))


@dtypes
@pytest.mark.parametrize("values", SPECIAL_VALUES)
def test_bytes_special_values(backend, values, dtype):
    assert_matches_reference(backend, "amax", SPECIAL_VALUES[values]((37, 61), dtype))


@dtypes
@pytest.mark.parametrize("value", [-3.0, 1e-7, math.inf, -math.nan])
def test_bytes_peak_in_every_place(backend, value, dtype):
    """Lanes, blocks and tails alike have to look at their element."""
    x = torch.zeros(700, dtype=dtype)
    want = reference.amax(torch.tensor([value], dtype=dtype))
    for place in range(x.numel()):
        x[place] = value
        assert_same_bytes(backend.run("amax", x), want, f"peak at {place}")
        x[place] = 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bytes_every_pattern(backend, dtype):
    """Each of the 65,536 values is once the peak of a vector, beside its predecessor and zeros."""
    patterns = all_patterns(dtype).flatten()
    magnitudes = patterns[:32768]  # the negative ones: bits 0x8000 | 0 .. 0x7fff
    for start in range(0, 65536, 128):
        assert_matches_reference(backend, "amax", patterns[start : start + 128])
    for start in range(0, 32768, 97):
        assert_matches_reference(backend, "amax", magnitudes[start : start + 2])


def test_bytes_fp32_mantissas_and_exponents(backend):
    """Near neighbours in FP32: no bit of the mantissa is lost on the way."""
    for exponent in range(0, 256, 5):
        bits = (exponent << 23) + torch.tensor(
            [0, 1, 2, 0x3FFFFF, 0x400000, 0x7FFFFE, 0x7FFFFF], dtype=torch.int64
        )
        for count in range(1, 8):
            assert_matches_reference(backend, "amax", -bits[:count].to(torch.int32).view(torch.float32))


@dtypes
@pytest.mark.parametrize("layout", LAYOUTS)
def test_S3_S4_S5_layouts(backend, layout, dtype):
    assert_matches_reference(backend, "amax", LAYOUTS[layout](lambda shape: normal(shape, dtype)))


@given(x=high_precision_views())
def test_bytes_any_view(backend, x):
    assert_matches_reference(backend, "amax", x)


@pytest.mark.parametrize("shape", EMPTY_SHAPES, ids=shape_id)
def test_S2_empty_is_zero(backend, shape):
    assert backend.run("amax", torch.empty(shape)).item() == 0.0


def test_V3_subnormals_count(backend):
    got = backend.run("amax", torch.tensor([0.0, -1e-45, 1e-40]))
    assert got.item() == torch.tensor(1e-40).item() > 0
