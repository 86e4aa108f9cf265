"""The reference against numbers worked out by hand from the formats' definitions."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from cases import E4M3, E5M2, FORMATS, all_codes, fp32_boundaries, scalar
from transcast import reference

INF, NAN = math.inf, math.nan
EXPONENT_BITS, MANTISSA_BITS, BIAS = {E4M3: 4, E5M2: 5}, {E4M3: 3, E5M2: 2}, {E4M3: 7, E5M2: 15}


def decoded(code: int, fmt: torch.dtype) -> float:
    """A code's value from the definition: sign, exponent, mantissa; the few special codes by name."""
    mantissa_bits = MANTISSA_BITS[fmt]
    sign = -1.0 if code >= 128 else 1.0
    exponent, mantissa = divmod(code % 128, 2**mantissa_bits)
    if fmt == E4M3 and code % 128 == 127:
        return NAN
    if fmt == E5M2 and exponent == 31:
        return sign * INF if mantissa == 0 else NAN
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - BIAS[fmt] - mantissa_bits)
    return sign * (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - BIAS[fmt])


def codes_of(values: list[float], fmt: torch.dtype, scale: float = 1.0) -> list[int]:
    q, _, _ = reference.cast(torch.tensor(values), scalar(scale), fmt)
    return q.view(torch.uint8).tolist()


def bits_of(x: torch.Tensor) -> int:
    return x.view(torch.int32).item() & 0xFFFFFFFF


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_all_codes_decode(fmt):
    got = reference.dequantize(all_codes(fmt), scalar(1.0), torch.float32).tolist()
    for code, value in enumerate(got):
        want = decoded(code, fmt)
        assert value == want or (math.isnan(value) and math.isnan(want)), hex(code)
        assert math.isnan(want) or math.copysign(1, value) == math.copysign(1, want), hex(code)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_all_codes_survive_a_cast(fmt):
    values = [decoded(code, fmt) for code in range(256)]
    want = list(range(256))
    if fmt == E4M3:
        want[0xFF] = 0x7F
    else:  # NaN has one code, and a cast never makes Inf
        want = [(0x7F if c % 128 > 0x7C else c - 1 if c % 128 == 0x7C else c) for c in want]
    assert codes_of(values, fmt) == want


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_rounds_to_nearest_even(fmt):
    """Against exact fractions: no code is nearer, and a tie goes to the even mantissa."""
    finite = [Fraction(decoded(c, fmt)) for c in range(127 if fmt == E4M3 else 124)]
    inputs = fp32_boundaries(fmt)
    inputs = inputs[~torch.signbit(inputs)].tolist()
    for value, code in zip(inputs, codes_of(inputs, fmt)):
        exact = min(Fraction(value), finite[-1])
        distance = abs(finite[code] - exact)
        for neighbour in (code - 1, code + 1):
            if 0 <= neighbour < len(finite):
                other = abs(finite[neighbour] - exact)
                assert distance < other or (distance == other and code % 2 == 0), (value, code)


@pytest.mark.parametrize(
    "value, code",
    [
        (0.0, 0x00), (-0.0, 0x80), (1.0, 0x38), (-1.0, 0xB8), (448.0, 0x7E), (-448.0, 0xFE),
        (1.0625, 0x38),  # halfway between 1 and 1.125: to the even mantissa, down
        (1.1875, 0x3A),  # halfway between 1.125 and 1.25: up
        (1.0625001, 0x39), (1.1874999, 0x39),
        (464.0, 0x7E), (465.0, 0x7E), (1e4, 0x7E), (1e30, 0x7E), (-1e30, 0xFE),  # saturates
        (INF, 0x7E), (-INF, 0xFE), (NAN, 0x7F), (-NAN, 0x7F),
        (2.0**-9, 0x01), (2.0**-10, 0x00), (-(2.0**-10), 0x80), (2.0**-10 * 1.0001, 0x01),
        (3 * 2.0**-10, 0x02),  # halfway between codes 1 and 2
        (7 * 2.0**-9, 0x07), (7.5 * 2.0**-9, 0x08), (2.0**-6, 0x08), (1e-30, 0x00), (1e-45, 0x00),
    ],
)  # fmt: skip
def test_e4m3_literals(value, code):
    assert codes_of([value], E4M3) == [code]


@pytest.mark.parametrize(
    "value, code",
    [
        (0.0, 0x00), (-0.0, 0x80), (1.0, 0x3C), (-1.0, 0xBC), (57344.0, 0x7B), (-57344.0, 0xFB),
        (1.125, 0x3C), (1.375, 0x3E), (1.1250001, 0x3D), (1.3749999, 0x3D),
        (61440.0, 0x7B), (65504.0, 0x7B), (1e30, 0x7B), (-1e30, 0xFB), (INF, 0x7B), (-INF, 0xFB),
        (NAN, 0x7F), (-NAN, 0x7F),
        (2.0**-16, 0x01), (2.0**-17, 0x00), (2.0**-17 * 1.0001, 0x01), (3 * 2.0**-17, 0x02),
        (3 * 2.0**-16, 0x03), (3.5 * 2.0**-16, 0x04), (2.0**-14, 0x04), (-(2.0**-16), 0x81), (1e-45, 0x00),
    ],
)  # fmt: skip
def test_e5m2_literals(value, code):
    assert codes_of([value], E5M2) == [code]


def test_product_is_rounded_to_fp32_before_the_cast():
    # FP32(23/3) * 3/16 = 23/16 - 2^-25. In FP32 that is 23/16, halfway between 1.375 and 1.5: to even, 1.5.
    assert codes_of([23 / 3], E4M3, 0.1875) == [0x3C]
    # BF16 data is not rounded to BF16 again: 1.0078125 * 1.0546875 = 1.0629..., above the tie 1.0625.
    q, _, _ = reference.cast(torch.tensor([1.0078125], dtype=torch.bfloat16), scalar(1.0546875), E4M3)
    assert q.view(torch.uint8).tolist() == [0x39]


def test_scales_of_any_sign_and_size():
    assert codes_of([1.0, -1.0, 0.0], E4M3, -2.0) == [0xC0, 0x40, 0x80]
    assert codes_of([1.0, -1.0, 0.0], E4M3, INF) == [0x7E, 0xFE, 0x7F]  # 0 * Inf is NaN
    assert codes_of([1.0, INF, -0.0], E4M3, 0.0) == [0x00, 0x7F, 0x80]
    assert codes_of([1.0, INF, 0.0], E5M2, NAN) == [0x7F, 0x7F, 0x7F]
    assert codes_of([1e-45], E4M3, 2.0**126) == [0x00]  # 2^-149 * 2^126 = 2^-23
    assert codes_of([2.0**-130], E4M3, 2.0**126) == [0x18]  # a subnormal input counts: 2^-4


def test_amax_literals():
    assert reference.amax(torch.tensor([1.0, -3.0, 2.0])).item() == 3.0
    assert bits_of(reference.amax(torch.tensor([-0.0]))) == 0
    assert bits_of(reference.amax(torch.empty(0, 5))) == 0
    assert bits_of(reference.amax(torch.tensor([1.0, -INF]))) == 0x7F800000
    assert bits_of(reference.amax(torch.tensor([1.0, -NAN, INF]))) == 0x7FC00000
    signalling = torch.tensor([0x7F800001], dtype=torch.int32).view(torch.float32)
    assert bits_of(reference.amax(signalling)) == 0x7FC00000
    assert bits_of(reference.amax(torch.tensor([-1e-45, 0.0]))) == 1
    assert reference.amax(torch.tensor([65504.0, -1.0], dtype=torch.float16)).item() == 65504.0


@pytest.mark.parametrize(
    "amax, fmt, pow2, margin, scale",
    [
        (448.0, E4M3, False, 0, 1.0), (57344.0, E5M2, False, 0, 1.0),
        (1.0, E4M3, False, 0, 448.0), (1.0, E4M3, True, 0, 256.0), (1.0, E4M3, False, 2, 112.0),
        (1.0, E4M3, True, 2, 64.0), (1.0, E4M3, False, -1, 896.0), (1.0, E5M2, True, 0, 32768.0),
        (3.0, E4M3, False, 0, 9786709 / 65536),  # 448/3 = 149.333...: 9786709.33 / 2^16, rounded down
        (7.0, E4M3, True, 0, 64.0), (6.9999995, E4M3, True, 0, 64.0), (7.0000005, E4M3, True, 0, 32.0),
        (0.0, E4M3, False, 0, 1.0), (0.0, E4M3, False, 3, 1.0), (INF, E4M3, False, 0, 1.0),
        (NAN, E5M2, True, 5, 1.0), (1e-38, E4M3, False, 0, 2.0**126), (1e-45, E4M3, False, 0, 2.0**126),
        (1e-40, E5M2, True, 3, 2.0**126),
        (2.0**128 - 2.0**104, E4M3, False, 0, 2.0**-120 * (1.75 + 2.0**-23)),  # one step above 448 * 2^-128
        (2.0**127, E4M3, False, 64, 2.0**-126), (448 * 2.0**-100, E4M3, False, 0, 2.0**100),
    ],
)  # fmt: skip
def test_V5_scale_from_amax(amax, fmt, pow2, margin, scale):
    assert reference.scale_from_amax(scalar(amax), fmt, pow2, margin).item() == scale


@pytest.mark.parametrize(
    "scale, amax, bits",
    [
        (1.0, 3.0, 0x3F800000), (448.0, 1.0, 0x3B124925), (-2.0, 1.0, 0xBF000000),
        (2.0**126, 1.0, 0x00800000), (2.0**-126, 1.0, 0x7E800000), (2.0**127, 1.0, 0x00400000),
        (0.0, 1.0, 0x7F800000), (-0.0, 1.0, 0xFF800000), (INF, 1.0, 0x00000000), (1e-45, 1.0, 0x7F800000),
        (1.0, INF, 0x7FC00000), (1.0, NAN, 0x7FC00000), (NAN, 1.0, 0x7FC00000), (-NAN, 1.0, 0x7FC00000),
    ],
)  # fmt: skip
def test_scale_inv_literals(scale, amax, bits):
    assert bits_of(reference.scale_inv_of(scalar(scale), scalar(amax))) == bits


def test_transpose_pads_with_zeros():
    q = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8).view(E4M3)
    got = reference.transpose(q).view(torch.uint8).tolist()
    assert got == [[1, 4] + [0] * 14, [2, 5] + [0] * 14, [3, 6] + [0] * 14]


def test_dbias_sums_columns_of_the_unscaled_data():
    x = torch.tensor([[[1.0, 10.0], [2.0, 20.0]], [[4.0, 40.0], [8.0, 80.0]]])
    assert reference.cast_transpose_dbias(x, scalar(3.0), E4M3)[3].tolist() == [15.0, 150.0]
    assert reference.quantize_transpose_dbias(x, E5M2)[4].tolist() == [15.0, 150.0]


def test_dequantize_rounds_once():
    # 1.125 * 1.00390625 = 1.12939... lies between BF16's 1.125 and 1.1328125, nearer to the second.
    q = torch.tensor([1.125]).to(E4M3)
    assert reference.dequantize(q, scalar(1.00390625), torch.bfloat16).item() == 1.1328125
    assert reference.dequantize(q, scalar(2.0**16), torch.float16).item() == INF
