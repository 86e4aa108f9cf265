"""The differentiable FP8 product behind ``tc.linear`` and ``FP8Linear``.

Host time decides whether a small layer pays, so the ops are called directly with positional arguments, no
tensor is made that is not needed, and the autograd node is skipped when nothing asks for a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.autograd.graph import increment_version

from . import _main_grad
from .recipes import Tensorwise

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

_quantize = torch.ops.transcast.quantize.default
_quantize_transpose = torch.ops.transcast.quantize_transpose.default
_quantize_transpose_dbias = torch.ops.transcast.quantize_transpose_dbias.default
_transpose = torch.ops.transcast.transpose.default
_gemm = torch.ops.transcast.gemm.default
_gemm_out = torch.ops.transcast.gemm_out.default

_is_compiling = torch.compiler.is_compiling

NOT_CACHED = (None, None, None, None)


def fp8_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    recipe: Tensorwise,
    into_main_grad: bool = False,
    weight_fp8: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None] = NOT_CACHED,
) -> Tensor:
    """``x . weight^T + bias`` in FP8 with gradients.

    ``weight_fp8`` is ``(q, scale_inv, q_t, scale_inv_t)`` if the weight is in FP8 already. Without ``q`` it
    is ``weight`` itself that is FP8; without ``q_t`` the backward transposes.
    """
    on = weight.device
    if (
        x.dim() == 0
        or x.size(-1) != weight.size(-1)
        or x.device != on
        or (bias is not None and bias.device != on)
    ):
        raise _mismatch(x, weight, bias)
    device = "cpu" if x.is_cpu else "cuda" if x.is_cuda else _other_device(x)
    out_dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    if torch.is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return _FP8Linear.apply(
            x, weight, bias, weight_fp8, (out_dtype, recipe.pow2, recipe.margin, into_main_grad)
        )
    if forward_ad._current_level >= 0:
        _refuse_tangents(x, weight, bias)
    x_q, x_scale_inv = _quantize(x, E4M3, recipe.pow2, recipe.margin)
    w_q, w_scale_inv, _, _ = weight_fp8
    if w_scale_inv is None:
        w_q, w_scale_inv = _quantize(weight, E4M3, recipe.pow2, recipe.margin)
    elif w_q is None:
        w_q = weight
    return _gemm(x_q, w_q, x_scale_inv, w_scale_inv, bias, "none", None, out_dtype, True)


def _mismatch(x: Tensor, weight: Tensor, bias: Tensor | None) -> ValueError:
    # Checked here, not in the ops: a GEMM takes 16 columns against 9 to 15 for a padded transposed operand,
    # and a meta tensor among others makes torch run the op's shape function in place of the op.
    if x.device != weight.device:
        return ValueError(f"linear: x and weight must be on one device, got {x.device} and {weight.device}")
    if bias is not None and bias.device != weight.device:
        return ValueError(
            f"linear: bias must be on the device of x and weight, {weight.device}, got {bias.device}"
        )
    return ValueError(
        f"linear: x must have shape (..., {weight.size(-1)}) to go with a weight of shape "
        f"{tuple(weight.shape)}, got {tuple(x.shape)}"
    )


def _refuse_tangents(*tensors: Tensor | None) -> None:
    # With a gradient path autograd refuses them itself; without one they would be dropped silently.
    if any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise RuntimeError(
            "FP8 linear layers have no forward-mode derivative; use recipe=None (tc.set_recipe(model, None)) "
            "where one is needed"
        )


def _other_device(x: Tensor) -> str:
    """The device type whose autocast settings count for an ``x`` that is neither on CPU nor on CUDA."""
    if x.device.type != "meta":
        raise ValueError(f"linear: x must be on a CPU or CUDA device, got {x.device}")
    return "cpu"


class _FP8Linear(Function):
    """Forward e4m3 x e4m3, gradients in e5m2. Saves transposed FP8 data and inverse scales, nothing else."""

    @staticmethod
    def forward(ctx, x, weight, bias, weight_fp8, settings):
        ctx.set_materialize_grads(False)
        need_x, need_weight, _, _, _ = ctx.needs_input_grad
        w_q, w_scale_inv, w_t, w_t_scale_inv = weight_fp8
        out_dtype, pow2, margin, into_main_grad = settings
        x_t = x_t_scale_inv = None
        if need_weight:
            x_q, x_scale_inv, x_t, x_t_scale_inv = _quantize_transpose(x, E4M3, pow2, margin)
        else:
            x_q, x_scale_inv = _quantize(x, E4M3, pow2, margin)
        if w_scale_inv is None:
            if need_x:
                w_q, w_scale_inv, w_t, w_t_scale_inv = _quantize_transpose(weight, E4M3, pow2, margin)
            else:
                w_q, w_scale_inv = _quantize(weight, E4M3, pow2, margin)
        elif w_q is None:
            # Not passed twice by the caller: Dynamo takes no tensor as two arguments.
            w_q = weight
        transpose_weight = need_x and w_t is None
        if transpose_weight:
            w_t, w_t_scale_inv = w_q, w_scale_inv
        ctx.save_for_backward(x_t, x_t_scale_inv, w_t, w_t_scale_inv)
        bias_dtype = None if bias is None else bias.dtype
        ctx.plan = (pow2, margin, transpose_weight, x.dtype, weight.dtype, bias_dtype)
        ctx.main_grad_weight = weight if into_main_grad and need_weight else None
        return _gemm(x_q, w_q, x_scale_inv, w_scale_inv, bias, "none", None, out_dtype, True)

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return None, None, None, None, None
        if not torch.is_grad_enabled() or _is_compiling():
            return _gradients(ctx, grad)
        # create_graph=True: what comes out must fail when differentiated, not pass for a constant.
        with torch.no_grad():
            grads = _gradients(ctx, grad)
        return _NoSecondDerivative.apply(torch.empty(0, requires_grad=True), *grads)


def _gradients(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    need_x, need_weight, need_bias, _, _ = ctx.needs_input_grad
    pow2, margin, transpose_weight, x_dtype, weight_dtype, bias_dtype = ctx.plan
    x_t, x_t_scale_inv, w_t, w_t_scale_inv = ctx.saved_tensors
    dx = dweight = dbias = None
    main_grad = None
    if ctx.main_grad_weight is not None:
        # Adding is a side effect: only where autograd was asked for this gradient (not by grad(loss, x)).
        need_weight = _main_grad.is_asked_for(ctx.next_functions[1][0])
        if need_weight:
            main_grad = _main_grad.find(ctx.main_grad_weight)
    if need_bias:
        # Also where only dbias is used: torch's own sum would round otherwise, and a bias would train
        # differently beside a frozen weight.
        g, g_scale_inv, g_t, g_t_scale_inv, dbias = _quantize_transpose_dbias(grad, E5M2, pow2, margin)
    elif need_weight:
        g, g_scale_inv, g_t, g_t_scale_inv = _quantize_transpose(grad, E5M2, pow2, margin)
    else:
        g, g_scale_inv = _quantize(grad, E5M2, pow2, margin)
    if need_weight:
        if main_grad is None:
            dweight = _gemm(g_t, x_t, g_t_scale_inv, x_t_scale_inv, None, "none", None, weight_dtype, False)
        else:
            _gemm_out(
                g_t, x_t, g_t_scale_inv, x_t_scale_inv, None, "none", None, False, True, main_grad, None
            )
            increment_version(main_grad)  # The op is none of autograd's, which would do it.
            dweight = _main_grad.mark_added(ctx.main_grad_weight)
    if need_x:
        if transpose_weight:
            w_t = _transpose(w_t)
        dx = _gemm(g, w_t, g_scale_inv, w_t_scale_inv, None, "none", None, x_dtype, False)
    if dbias is not None and bias_dtype is not torch.float32:
        dbias = dbias.to(bias_dtype)
    return dx, dweight, dbias, None, None


class _NoSecondDerivative(Function):
    """The gradients as they are; raises if someone differentiates through them."""

    @staticmethod
    def forward(ctx, anchor, *grads):
        return tuple(None if grad is None else grad.view_as(grad) for grad in grads)

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(
            "FP8 linear layers cannot be differentiated twice: their backward (create_graph=True) has no "
            "gradient. Use recipe=None (tc.set_recipe(model, None)) where second derivatives are needed"
        )
