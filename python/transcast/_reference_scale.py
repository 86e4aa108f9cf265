"""The largest value of a tensor, and the scales that follow from it, bit for bit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

FP8_MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
F32_INF_BITS = 0x7F800000
F32_NAN_BITS = 0x7FC00000
SCALE_MIN, SCALE_MAX = 2.0**-126, 2.0**126


def _canonical_nan(x: Tensor) -> Tensor:
    """FP32 ``x`` with every NaN stored as 0x7FC00000."""
    bits = x.contiguous().view(torch.int32)
    is_nan = (bits & 0x7FFFFFFF) > F32_INF_BITS
    return torch.where(is_nan, torch.full_like(bits, F32_NAN_BITS), bits).view(torch.float32)


def amax(x: Tensor) -> Tensor:
    """Largest ``|x|`` as FP32 of shape (): NaN (0x7FC00000) if any element is NaN, 0 if there are none.

    Without the sign bit, float bits compare like integers, and every NaN lies above Inf: nothing is lost.
    """
    bits = x.to(torch.float32).contiguous().view(torch.int32) & 0x7FFFFFFF
    largest = bits.max() if bits.numel() else bits.new_zeros(())
    return _canonical_nan(largest.view(torch.float32))


def scale_from_amax(amax: Tensor, dtype: torch.dtype, pow2: bool = False, margin: int = 0) -> Tensor:
    """The FP32 scale () that maps ``amax`` to the largest value of ``dtype``.

    0, Inf and NaN -> 1. Else ``fp32(max / amax) * 2**-margin``, clamped to [2**-126, 2**126] so that its
    inverse is a normal number; with ``pow2`` rounded down to a power of two.
    """
    amax = amax.reshape(())
    # full_like: `number / tensor` is number * reciprocal(tensor) in torch, which rounds twice.
    quotient = torch.full_like(amax, FP8_MAX[dtype]) / amax
    # In FP64 the margin is exact: the quotient's is the only rounding.
    scale = (quotient.to(torch.float64) * 2.0**-margin).clamp(SCALE_MIN, SCALE_MAX).to(torch.float32)
    if pow2:
        scale = (scale.view(torch.int32) & F32_INF_BITS).view(torch.float32)
    usable = torch.isfinite(amax) & (amax != 0)
    return torch.where(usable, scale, torch.ones_like(scale))


def scale_inv_of(scale: Tensor, amax: Tensor) -> Tensor:
    """``fp32(1 / scale)`` of shape (), or NaN (0x7FC00000) if ``amax`` is Inf or NaN."""
    scale, amax = scale.reshape(()), amax.reshape(())
    inverse = torch.ones_like(scale) / scale
    return _canonical_nan(torch.where(torch.isfinite(amax), inverse, torch.full_like(inverse, math.nan)))
