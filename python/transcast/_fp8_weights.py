"""Layers whose weight itself is FP8: how it gets there, moves between devices, and is loaded.

Such a layer has ``weight`` as an e4m3 parameter without gradient and the FP32 buffer ``weight_scale_inv`` of
shape (); the weight's value is ``weight * weight_scale_inv``. FP8 data is never converted by torch's own
casts, which know nothing of the scale.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

E4M3 = torch.float8_e4m3fn
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
HIGH_PRECISION = (torch.float32, torch.bfloat16, torch.float16)
_quantize = torch.ops.transcast.quantize.default
_dequantize = torch.ops.transcast.dequantize.default


def is_quantized(layer: nn.Module) -> bool:
    return "weight_scale_inv" in layer._buffers


def scale_inv_of(layer: nn.Module) -> Tensor:
    """The inverse scale of a layer whose weight is FP8; raises where it cannot be computed with."""
    if not is_quantized(layer):
        raise ValueError(
            f"FP8Linear: the weight was converted to {layer.weight.dtype} without a scale, as by "
            ".to(dtype); quantize_weights_ makes FP8 weights"
        )
    if layer.weight.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            "FP8Linear: the weight is FP8 (quantize_weights_) and cannot be trained, but requires_grad is "
            "True; call weight.requires_grad_(False)"
        )
    return layer.weight_scale_inv


def quantized(layer: nn.Module) -> tuple[nn.Parameter, Tensor]:
    """The layer's high-precision weight as an FP8 parameter, and its inverse scale."""
    recipe = layer.recipe
    with torch.no_grad():
        q, scale_inv = _quantize(layer.weight, E4M3, recipe.pow2, recipe.margin)
    return nn.Parameter(q, requires_grad=False), scale_inv


def dequantized(layer: nn.Module) -> nn.Parameter:
    """The FP8 weight as a parameter of the dtype it had before, without gradient."""
    with torch.no_grad():
        value = _dequantize(layer.weight, layer.weight_scale_inv, _compute_dtype(layer._weight_dtype))
    return nn.Parameter(value.to(layer._weight_dtype), requires_grad=False)


def moving_only(layer: nn.Module, fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """``fn`` of ``Module._apply``, changed so that FP8 data and its scale move but keep their dtype."""
    kept = (layer.weight, layer.weight_scale_inv)

    def apply(tensor: Tensor) -> Tensor:
        if tensor is not kept[0] and tensor is not kept[1]:
            return fn(tensor)
        # An empty tensor shows what fn does to dtype and device: converted data would lose its scale.
        probe = fn(tensor.new_empty(0))
        return fn(tensor) if probe.dtype == tensor.dtype else tensor.to(probe.device)

    return apply


def keep_tied(layer: nn.Module, before: Tensor) -> None:
    """After ``Module._apply``: the scale is the tensor object ``before`` again, with its new content.

    torch does so for parameters, not for buffers; layers that share a weight would each get a scale of
    their own, and loading one would leave the other's behind.
    """
    after = layer.weight_scale_inv
    if after is not before and torch._has_compatible_shallow_copy_type(before, after):
        before.data = after
        layer.weight_scale_inv = before


def translated(
    layer: nn.Module, state: dict[str, Tensor], prefix: str, errors: list[str]
) -> dict[str, Tensor] | None:
    """``state`` with the weight in the layer's own form.

    High-precision weights are quantized for a quantized layer, FP8 weights dequantized for one that is not.
    What cannot be translated gives None and a line in ``errors``.
    """
    weight_key, scale_key = prefix + "weight", prefix + "weight_scale_inv"
    weight, scale_inv = state.get(weight_key), state.get(scale_key)
    problem = _problem(layer, weight, scale_inv)
    if problem:
        errors.append(f"{weight_key}: {problem}")
        return None
    if weight is None or is_quantized(layer) == (scale_inv is not None):
        return state
    state = dict(state)
    with torch.no_grad():
        if scale_inv is None:
            value = weight if weight.dtype in HIGH_PRECISION else weight.to(torch.float32)
            recipe = layer.recipe
            state[weight_key], state[scale_key] = _quantize(value, E4M3, recipe.pow2, recipe.margin)
        else:
            scale_inv = state.pop(scale_key).to(torch.float32)
            state[weight_key] = _dequantize(weight, scale_inv, _compute_dtype(layer.weight.dtype))
    return state


def _problem(layer: nn.Module, weight: Tensor | None, scale_inv: Tensor | None) -> str | None:
    if weight is None:
        return "weight_scale_inv comes without a weight" if scale_inv is not None else None
    if scale_inv is None:
        is_number = weight.is_floating_point() and weight.dtype not in _FP8
        return None if is_number else f"a {weight.dtype} weight comes without weight_scale_inv"
    if weight.dtype != E4M3:
        return f"weight_scale_inv comes with a {weight.dtype} weight, expected {E4M3}"
    if scale_inv.numel() != 1:
        return f"weight_scale_inv must hold one element, got shape {tuple(scale_inv.shape)}"
    return None


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in HIGH_PRECISION else torch.float32
