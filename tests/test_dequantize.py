"""dequantize: FP32 product, one rounding to the output dtype."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import (
    DTYPES,
    E4M3,
    E5M2,
    LARGE_SHAPES,
    SCALES,
    SHAPES,
    all_codes,
    fp8,
    normal,
    scalar,
    shape_id,
)
from conftest import assert_matches_reference, dtypes, formats
from layouts import LAYOUTS, fp8_views



@formats
@dtypes
@pytest.mark.parametrize("shape", [(), *SHAPES, *LARGE_SHAPES], ids=shape_id)
def test_bytes_shapes(backend, shape, dtype, fmt):
    assert_matches_reference(backend, "dequantize", fp8(shape, fmt), scalar(1.7), dtype)


@formats
@dtypes
@pytest.mark.parametrize("scale_inv", SCALES)
def test_bytes_every_code(backend, scale_inv, dtype, fmt):
    """All 256 codes, where vectors hold them and where tails do."""
    codes = all_codes(fmt)
    for q in (codes, codes.view(-1, 2), codes[3:250], codes.repeat(5)[7:]):
        assert_matches_reference(backend, "dequantize", q, scalar(SCALES[scale_inv]), dtype)


@formats
@dtypes
def test_bytes_where_rounding_decides(backend, dtype, fmt):
    """Many scales: ties and near-ties of the output dtype, its subnormals and its overflow."""
    codes = all_codes(fmt)
    mantissas = torch.tensor(
        [1.0, 1 + 2**-8, 1 + 2**-9, 1 + 2**-11, 1 + 2**-12, 1.5 + 2**-9, 2 - 2**-23, 1.2345678]
    )
    for exponent in range(-150, 128, 3):
        for mantissa in mantissas.tolist():
            assert_matches_reference(
                backend, "dequantize", codes, scalar(math.ldexp(mantissa, exponent)), dtype
            )


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=shape_id)
def test_S10_scale_shapes(backend, shape):
    assert_matches_reference(backend, "dequantize", fp8((5, 9), E4M3), scalar(1.7, shape), torch.bfloat16)


@formats
@dtypes
@pytest.mark.parametrize("layout", LAYOUTS)
def test_S3_S4_S5_layouts(backend, layout, dtype, fmt):
    q = LAYOUTS[layout](lambda shape: fp8(shape, fmt))
    (y,) = assert_matches_reference(backend, "dequantize", q, scalar(1.7), dtype)
    assert y.is_contiguous()


@given(
    q=fp8_views(E4M3) | fp8_views(E5M2),
    dtype=st.sampled_from(list(DTYPES.values())),
    scale_inv=st.floats(width=32, allow_nan=True, allow_infinity=True),
)
def test_bytes_any_view(backend, q, dtype, scale_inv):
    assert_matches_reference(backend, "dequantize", q, scalar(scale_inv), dtype)


@formats
def test_round_trip_is_within_half_a_step(backend, fmt):
    """What quantize takes, dequantize gives back: relative to each value, absolute near zero."""
    x = normal((64, 65), torch.float32)
    q, scale_inv = backend.run("quantize", x, fmt)
    y = backend.run("dequantize", q, scale_inv, torch.float32)
    relative, smallest = {E4M3: (2.0**-4, 2.0**-9), E5M2: (2.0**-3, 2.0**-16)}[fmt]
    assert ((y - x).abs() <= relative * x.abs() * (1 + 1e-6) + smallest / 2 * scale_inv).all()


def test_V4_a_poisoned_scale_makes_nan(backend):
    y = backend.run("dequantize", fp8((3, 4), E4M3), scalar(math.nan), torch.float16)
    assert torch.isnan(y).all()
