"""The product of a GEMM in FP64, before it is rounded: what ``reference.gemm`` and error bounds start from."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715


def gelu_tanh(x: Tensor) -> Tensor:
    """``0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`` in the dtype of ``x``."""
    return 0.5 * x * (1.0 + torch.tanh(SQRT_2_OVER_PI * (x + GELU_CUBIC * x**3)))


def gelu_tanh_grad(x: Tensor) -> Tensor:
    """Derivative of ``gelu_tanh`` at ``x``."""
    t = torch.tanh(SQRT_2_OVER_PI * (x + GELU_CUBIC * x**3))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * SQRT_2_OVER_PI * (1.0 + 3.0 * GELU_CUBIC * x**2)


def bias_dtype(bias: Tensor, out_dtype: torch.dtype) -> torch.dtype:
    """The dtype in which the hardware adds a bias: fp16 beside fp16 outputs, or FP8 ones if it is fp16."""
    fp8_with_half = out_dtype.itemsize == 1 and bias.dtype == torch.float16
    return torch.float16 if out_dtype == torch.float16 or fp8_with_half else torch.bfloat16


def scaled_fp64(q: Tensor, scale_inv: Tensor) -> Tensor:
    """Codes [R, K] times their inverse scales, in FP64.

    ``scale_inv``: FP32 with one element, or (R, 1), (R, ceil(K / 128)), (ceil(R / 128), ceil(K / 128)): one
    per row, per 1x128 or 128x128 block; or uint8 (R, ceil(K / 32)): E8M0, ``2**(code - 127)``, 0xFF being
    NaN, per 1x32 block.
    """
    values, (rows, columns) = q.to(torch.float32).to(torch.float64), q.shape
    scales, width = scale_inv.to(torch.float64), 128
    if scale_inv.dtype == torch.uint8:
        scales, width = torch.where(scale_inv == 255, math.nan, 2.0 ** (scales - 127)), 32
    elif scale_inv.numel() == 1:
        return values * scales.reshape(())
    elif scale_inv.shape[1] == 1:
        width = columns
    height = 1 if scale_inv.shape[0] == rows else 128
    scales = scales.repeat_interleave(height, dim=0)[:rows]
    return values * scales.repeat_interleave(width, dim=1)[:, :columns]


def operands_fp64(a: Tensor, b: Tensor, a_scale_inv: Tensor, b_scale_inv: Tensor) -> tuple[Tensor, Tensor]:
    """``a`` as (M, K) and ``b`` (N, K) in FP64, scaled; exact.

    Where K of ``a`` and ``b`` differs, one carries the padding of a transposed operand, which is not read.
    """
    k = min(a.shape[-1], b.shape[-1])
    a_rows = a[..., :k].reshape(math.prod(a.shape[:-1]), k)
    return scaled_fp64(a_rows, a_scale_inv), scaled_fp64(b[:, :k], b_scale_inv)


def gemm_fp64(
    a: Tensor,
    b: Tensor,
    a_scale_inv: Tensor,
    b_scale_inv: Tensor,
    bias: Tensor | None,
    epilogue: str,
    aux: Tensor | None,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The product before it is rounded: ``(y, pre)`` in FP64, ``pre`` being ``y`` before its epilogue."""
    a64, b64 = operands_fp64(a, b, a_scale_inv, b_scale_inv)
    pre = (a64 @ b64.t()).reshape(*a.shape[:-1], b.shape[0])
    if bias is not None:
        pre = pre + bias.to(bias_dtype(bias, out_dtype)).to(torch.float64)
    if epilogue == "relu":
        return torch.relu(pre), pre
    if epilogue == "gelu_tanh":
        return gelu_tanh(pre), pre
    if epilogue == "dgelu":
        return pre * gelu_tanh_grad(aux.to(torch.float64)).reshape(pre.shape), pre
    return pre, pre
