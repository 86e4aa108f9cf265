"""An FP8 linear layer from torch's own operations: plain casts and torch._scaled_mm."""

from __future__ import annotations

import peers
import torch
from torch import Tensor
from torch.autograd import Function

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def product(
    a: Tensor, b: Tensor, a_scale_inv: Tensor, b_scale_inv: Tensor, dtype: torch.dtype, fast: bool
) -> Tensor:
    """a [M, K] . b [N, K]^T"""
    return torch._scaled_mm(a, b.t(), a_scale_inv, b_scale_inv, out_dtype=dtype, use_fast_accum=fast)


class ScaledLinear(Function):
    """Forward e4m3 x e4m3, gradients in e5m2, scales from the data: what FP8Linear computes."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x_q, x_scale_inv = peers.quantize(x, E4M3)
        w_q, w_scale_inv = peers.quantize(weight, E4M3)
        ctx.save_for_backward(x_q, x_scale_inv, w_q, w_scale_inv)
        return product(x_q, w_q, x_scale_inv, w_scale_inv, x.dtype, True) + bias

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, ...]:
        x_q, x_scale_inv, w_q, w_scale_inv = ctx.saved_tensors
        g, g_scale_inv = peers.quantize(grad, E5M2)
        x_t, w_t, g_t = (q.t().contiguous() for q in (x_q, w_q, g))
        dx = product(g, w_t, g_scale_inv, w_scale_inv, grad.dtype, False)
        dweight = product(g_t, x_t, g_scale_inv, x_scale_inv, grad.dtype, False)
        return dx, dweight, grad.sum(dim=0)
