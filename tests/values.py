"""Values that tests feed to the ops: random, special, exhaustive. Part of the table in cases.py."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
Make = Callable[[tuple[int, ...], torch.dtype], Tensor]


def scalar(value: float, shape: tuple[int, ...] = ()) -> Tensor:
    return torch.full(shape, value, dtype=torch.float32)


def normal(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random data whose magnitudes span 2**-12 .. 2**12, so that casts meet subnormals and saturation."""
    generator = torch.Generator().manual_seed(seed)
    mantissa = torch.randn(shape, generator=generator)
    exponent = torch.randint(-12, 13, shape, generator=generator)
    return torch.ldexp(mantissa, exponent).to(dtype)


def _with_one(value: float) -> Make:
    """Random data with one element set: the last but one, which a vector loop leaves to its tail."""

    def make(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        x = normal(shape, dtype)
        if x.numel():
            x.view(-1)[-2 if x.numel() > 1 else 0] = value
        return x

    return make


def _filled(value: float) -> Make:
    return lambda shape, dtype: torch.full(shape, value, dtype=torch.float32).to(dtype)


def _subnormals(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Every element a subnormal of its dtype, both signs."""
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    mantissa = {torch.float32: 23, torch.bfloat16: 7, torch.float16: 10}[dtype]
    generator = torch.Generator().manual_seed(1)
    magnitude = torch.randint(1, 2**mantissa, shape, generator=generator).to(bits).view(dtype)
    return torch.where(torch.rand(shape, generator=generator) < 0.5, magnitude, -magnitude)


def _overflowing(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Finite, but beyond both formats: up to the largest value of the dtype."""
    x = normal(shape, torch.float32).sign() * torch.finfo(dtype).max
    return torch.where(normal(shape, torch.float32, seed=2) > 0, x, x / 1.1).to(dtype)


SPECIAL_VALUES: dict[str, Make] = {
    "zeros": _filled(0.0),
    "negative_zeros": _filled(-0.0),
    "subnormals": _subnormals,
    "tiny": _filled(1e-38),  # zero in FP16
    "peak": _with_one(60000.0),
    "one_nan": _with_one(math.nan),
    "one_inf": _with_one(math.inf),
    "one_negative_inf": _with_one(-math.inf),
    "overflowing": _overflowing,
    "all_negative": lambda shape, dtype: -normal(shape, dtype).abs() - torch.ones((), dtype=dtype),
}


def all_patterns(dtype: torch.dtype) -> Tensor:
    """All 65,536 values of a 16-bit dtype, as 256 x 256."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).reshape(256, 256)


def all_codes(fmt: torch.dtype) -> Tensor:
    """All 256 codes of a format, in order."""
    return torch.arange(256, dtype=torch.int32).to(torch.uint8).view(fmt)


def fp32_boundaries(fmt: torch.dtype) -> Tensor:
    """FP32 values at which rounding decides: every finite code and midpoint, their neighbours, both signs."""
    codes = all_codes(fmt)[:128].to(torch.float32)
    values = codes[torch.isfinite(codes)]
    midpoints = (values[:-1] + values[1:]) / 2
    beyond = values[-1:] * torch.tensor([1.03, 1.0625, 1.07, 2.0, 1e30])
    bits = torch.cat([values, midpoints, beyond]).view(torch.int32)
    steps = torch.tensor([-2, -1, 0, 1, 2], dtype=torch.int32)
    near = (bits[:, None] + steps).flatten().clamp(min=0).view(torch.float32)
    return torch.cat([near, -near])


def fp8(shape: tuple[int, ...], fmt: torch.dtype, seed: int = 0) -> Tensor:
    """FP8 data over the whole range of finite codes."""
    largest = {E4M3: 0x7E, E5M2: 0x7B}[fmt]
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, largest + 1, shape, generator=generator)
    signs = torch.randint(0, 2, shape, generator=generator) * 128
    return (codes + signs).to(torch.uint8).view(fmt)


def fp8_integers(shape: tuple[int, ...], fmt: torch.dtype, seed: int = 0) -> Tensor:
    """FP8 data in {-2 .. 2}: sums of up to 2**22 products are exact in FP32, in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator).to(torch.float32).to(fmt)
