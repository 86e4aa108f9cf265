"""Activations as the fixed sequence of FP32 operations that every backend runs: the twin of csrc/core/act.h.

Each operation rounds once, to nearest even; there is no fused multiply-add and no library function. Arguments
and results are FP32 tensors of one shape. NaN gives NaN. Results are exact bit patterns. How far they may be from
the functions they stand for is derived in tests/bounds.py: relative to the value for silu, to |x| for gelu_tanh,
absolute for the derivatives; magnitudes below 1e-36 may become 0 where exp overflows.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _f32(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32).item()


_LOG2_E = _f32(1.44269504)
_LN2_HIGH, _LN2_LOW = 0.693359375, _f32(-2.12194440e-4)
_ROUNDER = 12582912.0  # 1.5 * 2**23: adding it rounds to an integer held in the low bits
_ROUNDER_BITS = 0x4B400000
_TAYLOR = [_f32(1 / n) for n in (5040, 720, 120, 24, 6, 2, 1, 1)]  # the highest power first

_GELU_SLOPE = _f32(1.5957691)  # 2 sqrt(2 / pi)
_GELU_CUBIC = _f32(0.044715)
_GELU_CUBIC_3 = _f32(0.134145)


def _reciprocal(x: Tensor) -> Tensor:
    # torch computes `number / tensor` as number * reciprocal(tensor), which may round twice.
    return torch.ones_like(x) / x


def _power_of_two(exponent: Tensor) -> Tensor:
    return ((exponent + 127) << 23).view(torch.float32)


def exp_f32(x: Tensor) -> Tensor:
    """e^x: 2^n e^r with |r| <= ln2 / 2 and a polynomial of degree 7; 0 below -104, Inf above 89."""
    x = x.clamp(-104.0, 89.0)  # keeps NaN
    shifted = x * _LOG2_E + _ROUNDER
    n = shifted - _ROUNDER
    r = x - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    p = torch.full_like(r, _TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        p = p * r + coefficient
    exponent = shifted.view(torch.int32) - _ROUNDER_BITS
    half = exponent >> 1
    return p * _power_of_two(half) * _power_of_two(exponent - half)


def sigmoid_f32(x: Tensor) -> Tensor:
    """1 / (1 + e^-x)."""
    return _reciprocal(exp_f32(-x) + 1.0)


def _gelu_argument(x: Tensor) -> Tensor:
    return _GELU_SLOPE * (x + _GELU_CUBIC * x * x * x)


def gelu_tanh_f32(x: Tensor) -> Tensor:
    """x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)); -Inf gives NaN."""
    return x * sigmoid_f32(_gelu_argument(x))


def dgelu_tanh_f32(x: Tensor) -> Tensor:
    """Derivative of gelu_tanh."""
    x = x.clamp(-12.0, 12.0)
    s = sigmoid_f32(_gelu_argument(x))
    return s + x * s * (1.0 - s) * (_GELU_SLOPE * (1.0 + _GELU_CUBIC_3 * x * x))


def silu_f32(x: Tensor) -> Tensor:
    """x sigmoid(x); -Inf gives NaN."""
    return x * sigmoid_f32(x)


def dsilu_f32(x: Tensor) -> Tensor:
    """Derivative of silu: s (1 + x (1 - s))."""
    s = sigmoid_f32(x)
    x = x.clamp(-110.0, 110.0)
    return s * (1.0 + x * (1.0 - s))


def _gate_and_up(x: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    gate, up = x.chunk(2, dim=-1) if up is None else (x, up)
    return gate.to(torch.float32).contiguous(), up.to(torch.float32).contiguous()


def act(x: Tensor, act: str, up: Tensor | None) -> Tensor:
    """FP32 value of the activation: the shape of ``x``, or of its half if that is [gate | up]."""
    if act == "swiglu":
        gate, up = _gate_and_up(x, up)
        return silu_f32(gate) * up
    return {"gelu_tanh": gelu_tanh_f32, "silu": silu_f32}[act](x.to(torch.float32).contiguous())


def dact(g: Tensor, x: Tensor, act: str, up: Tensor | None) -> Tensor:
    """FP32 gradient of ``act``, whose value has the gradient ``g``; for swiglu [dgate | dup], (..., 2C)."""
    g = g.to(torch.float32).contiguous()
    if act == "swiglu":
        gate, up = _gate_and_up(x, up)
        return torch.cat([g * dsilu_f32(gate) * up, g * silu_f32(gate)], dim=-1)
    return g * {"gelu_tanh": dgelu_tanh_f32, "silu": dsilu_f32}[act](x.to(torch.float32).contiguous())
