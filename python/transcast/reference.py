"""One plain-torch function per op: what every backend is compared with.

Names, arguments and returned tuples are those of ``torch.ops.transcast``. Nothing is checked here (the ops do
that) and nothing is tuned; tensors may live on any device and have any strides. Casts, also of activations,
amax, scales and dequantized data are exact bit patterns. ``dbias`` and the GEMMs are computed in FP64 and
rounded once, so a backend that sums in FP32 is held to an error bound around them.

Needs torch's default treatment of subnormals: under ``torch.set_flush_denormal(True)`` torch itself reads
subnormal inputs as zero. The ops are not disturbed by that switch, this file is: call it with it off.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._reference_act import act as _act
from ._reference_act import dact as _dact
from ._reference_gemm import gelu_tanh, gelu_tanh_grad, gemm_fp64, operands_fp64  # noqa: F401  for tests
from ._reference_scale import FP8_MAX, amax, scale_from_amax, scale_inv_of

FP8_NAN = 0x7F


# --- casts ----------------------------------------------------------------------------------------


def _rows(x: Tensor) -> Tensor:
    """``x`` as a matrix: leading dims flattened, a vector is one row."""
    if x.dim() == 0:
        return x.reshape(1, 1)
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _to_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """FP32 product, clamp, round to nearest even; every NaN becomes 0x7F."""
    product = x.to(torch.float32).contiguous() * scale.reshape(())
    # Clamped first: what torch does with values out of range depends on its version and on the format.
    codes = product.clamp(-FP8_MAX[dtype], FP8_MAX[dtype]).to(dtype).view(torch.uint8)
    return torch.where(torch.isnan(product), torch.full_like(codes, FP8_NAN), codes).view(dtype)


def transpose(q: Tensor) -> Tensor:
    """FP8 (R, C) -> contiguous (C, ceil16(R)); the columns past R are zero."""
    codes = _rows(q).view(torch.uint8)
    rows, cols = codes.shape
    padded = torch.zeros(cols, -(-rows // 16) * 16, dtype=torch.uint8, device=q.device)
    padded[:, :rows] = codes.t()
    return padded.view(q.dtype)


def _dbias(x: Tensor) -> Tensor:
    """Column sums of ``x`` (not scaled): FP64, rounded to FP32 (C,)."""
    return _rows(x).to(torch.float64).sum(dim=0).to(torch.float32)


def cast(x: Tensor, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """``q, scale_inv, amax`` with the given scale."""
    largest = amax(x)
    return _to_fp8(x, scale, dtype), scale_inv_of(scale, largest), largest


def cast_transpose(x: Tensor, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``q, scale_inv, q_t, amax``."""
    q, scale_inv, largest = cast(x, scale, dtype)
    return q, scale_inv, transpose(q), largest


def cast_transpose_dbias(
    x: Tensor, scale: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``q, scale_inv, q_t, dbias, amax``."""
    q, scale_inv, largest = cast(x, scale, dtype)
    return q, scale_inv, transpose(q), _dbias(x), largest


def quantize(x: Tensor, dtype: torch.dtype, pow2: bool = False, margin: int = 0) -> tuple[Tensor, Tensor]:
    """``q, scale_inv`` with the scale made from the amax of ``x``."""
    q, scale_inv, _ = cast(x, scale_from_amax(amax(x), dtype, pow2, margin), dtype)
    return q, scale_inv


def quantize_transpose(
    x: Tensor, dtype: torch.dtype, pow2: bool = False, margin: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``q, scale_inv, q_t, scale_inv_t``; the two inverse scales are equal here."""
    q, scale_inv = quantize(x, dtype, pow2, margin)
    return q, scale_inv, transpose(q), scale_inv.clone()


def quantize_transpose_dbias(
    x: Tensor, dtype: torch.dtype, pow2: bool = False, margin: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``q, scale_inv, q_t, scale_inv_t, dbias``."""
    return *quantize_transpose(x, dtype, pow2, margin), _dbias(x)


def multi_quantize_transpose(
    xs: list[Tensor], dtype: torch.dtype, pow2: bool = False, margin: int = 0
) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
    """``quantize_transpose`` of each tensor; the results are lists of ``q, scale_inv, q_t, scale_inv_t``."""
    results = [quantize_transpose(x, dtype, pow2, margin) for x in xs]
    return tuple([result[i] for result in results] for i in range(4))


# --- activations, and their gradients, cast -------------------------------------------------------


def act_cast(
    x: Tensor, scale: Tensor, dtype: torch.dtype, act: str, up: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """``cast`` of the activation, which stays FP32 until it is cast."""
    return cast(_act(x, act, up), scale, dtype)


def act_cast_transpose(
    x: Tensor, scale: Tensor, dtype: torch.dtype, act: str, up: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``cast_transpose`` of the activation."""
    return cast_transpose(_act(x, act, up), scale, dtype)


def act_quantize(
    x: Tensor, dtype: torch.dtype, act: str, up: Tensor | None = None, pow2: bool = False, margin: int = 0
) -> tuple[Tensor, Tensor]:
    """``quantize`` of the activation."""
    return quantize(_act(x, act, up), dtype, pow2, margin)


def act_quantize_transpose(
    x: Tensor, dtype: torch.dtype, act: str, up: Tensor | None = None, pow2: bool = False, margin: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``quantize_transpose`` of the activation."""
    return quantize_transpose(_act(x, act, up), dtype, pow2, margin)


def dact_cast_transpose_dbias(
    g: Tensor, x: Tensor, scale: Tensor, dtype: torch.dtype, act: str, up: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``cast_transpose_dbias`` of the activation's gradient."""
    return cast_transpose_dbias(_dact(g, x, act, up), scale, dtype)


def dact_quantize_transpose_dbias(
    g: Tensor,
    x: Tensor,
    dtype: torch.dtype,
    act: str,
    up: Tensor | None = None,
    pow2: bool = False,
    margin: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``quantize_transpose_dbias`` of the activation's gradient."""
    return quantize_transpose_dbias(_dact(g, x, act, up), dtype, pow2, margin)


def dequantize(q: Tensor, scale_inv: Tensor, dtype: torch.dtype) -> Tensor:
    """``q * scale_inv``: product in FP32, then one rounding to ``dtype``; contiguous, shape of ``q``."""
    return (q.to(torch.float32).contiguous() * scale_inv.reshape(())).to(dtype)


# --- GEMM -----------------------------------------------------------------------------------------


def gemm(
    a: Tensor,
    b: Tensor,
    a_scale_inv: Tensor,
    b_scale_inv: Tensor,
    bias: Tensor | None,
    epilogue: str,
    aux: Tensor | None,
    out_dtype: torch.dtype,
    fast_accum: bool,
) -> Tensor:
    """``epilogue(a[..., K] . b[N, K]^T * a_scale_inv * b_scale_inv + bias)`` -> [..., N] in ``out_dtype``.

    torch rounds FP64 to a 16-bit type through FP32; that second rounding is far inside the bound of a GEMM.
    """
    y, _ = gemm_fp64(a, b, a_scale_inv, b_scale_inv, bias, epilogue, aux, out_dtype)
    return y.to(out_dtype)


def gemm_out(
    a: Tensor,
    b: Tensor,
    a_scale_inv: Tensor,
    b_scale_inv: Tensor,
    bias: Tensor | None,
    epilogue: str,
    aux: Tensor | None,
    fast_accum: bool,
    accumulate: bool,
    out: Tensor,
    aux_out: Tensor | None,
) -> None:
    """``gemm`` into ``out``, added with ``accumulate``; ``aux_out`` takes what ``gelu_tanh`` is given."""
    y, pre = gemm_fp64(a, b, a_scale_inv, b_scale_inv, bias, epilogue, aux, out.dtype)
    out.copy_(out.to(torch.float64) + y if accumulate else y)
    if aux_out is not None:
        aux_out.copy_(pre.reshape(aux_out.shape))


def gemm_fp8(
    a: Tensor,
    b: Tensor,
    a_scale_inv: Tensor,
    b_scale_inv: Tensor,
    out_scale: Tensor,
    bias: Tensor | None,
    epilogue: str,
    dtype: torch.dtype,
    fast_accum: bool,
    aux_out: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``q, scale_inv, amax``: the product rounded to FP32, then ``cast`` with ``out_scale``."""
    y, pre = gemm_fp64(a, b, a_scale_inv, b_scale_inv, bias, epilogue, None, dtype)
    if aux_out is not None:
        aux_out.copy_(pre.reshape(aux_out.shape))
    return cast(y.to(torch.float32), out_scale, dtype)
