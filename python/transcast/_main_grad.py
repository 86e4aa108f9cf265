"""Weight gradients that are added into ``weight.main_grad``, by the protocol of Megatron's gradient hooks.

A trainer gives every weight an FP32 or BF16 tensor ``main_grad`` and, if it listens to gradient hooks, the
attribute ``grad_added_to_main_grad``. Whoever adds the gradient himself sets that attribute to True. Autograd
runs a weight's hooks only when a gradient arrives, so a trainer that listens is handed a stand-in: its
content is not read, unless ``weight.zero_out_wgrad`` asks for zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import Function

# On weights whose flag we created ourselves: nobody listens there, on later steps neither.
_FLAG_IS_OURS = "_transcast_created_flag"
_DTYPES = (torch.float32, torch.bfloat16)


def find(weight: Tensor) -> Tensor:
    """``weight.main_grad``; a RuntimeError says what is missing, a ValueError what is wrong with it."""
    if hasattr(weight, "device_mesh"):
        raise RuntimeError(
            'FP8Linear(wgrad_into="main_grad"): the weight is a DTensor; main_grad needs plain parameters. '
            "Use wgrad_into=None with sharded parameters."
        )
    main_grad = getattr(weight, "main_grad", None)
    if main_grad is None:
        raise RuntimeError(
            'FP8Linear(wgrad_into="main_grad"): the weight has no main_grad. Set weight.main_grad to an '
            f"FP32 or BF16 tensor of shape {tuple(weight.shape)} before the backward pass, or use "
            "wgrad_into=None; under FSDP2 (fully_shard) only None works: the unsharded parameters that a "
            "layer sees there carry no main_grad."
        )
    if (
        main_grad.dtype not in _DTYPES
        or main_grad.shape != weight.shape
        or main_grad.device != weight.device
    ):
        raise ValueError(
            'FP8Linear(wgrad_into="main_grad"): weight.main_grad must be an FP32 or BF16 tensor of shape '
            f"{tuple(weight.shape)} on {weight.device}, got {main_grad.dtype} of shape "
            f"{tuple(main_grad.shape)} on {main_grad.device}"
        )
    return main_grad


def is_asked_for(node: torch.autograd.graph.Node) -> bool:
    """Whether the backward that is running wants the gradient that goes to ``node``.

    Not if it is restricted to others, as by ``torch.autograd.grad(loss, x)``.
    """
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:
        # What torch answers if this very leaf is among the inputs of torch.autograd.grad.
        return True


def mark_added(weight: Tensor) -> Tensor | None:
    """Says on the weight that its gradient is in ``main_grad``; returns autograd's stand-in for it."""
    listened_to = hasattr(weight, "grad_added_to_main_grad") and not hasattr(weight, _FLAG_IS_OURS)
    if not listened_to:
        setattr(weight, _FLAG_IS_OURS, True)
    weight.grad_added_to_main_grad = True
    if not listened_to:
        return None
    return torch.zeros_like(weight) if getattr(weight, "zero_out_wgrad", False) else torch.empty_like(weight)


class Redirect(Function):
    """The weight itself; its gradient goes to ``main_grad``. For layers whose recipe is ``None``."""

    @staticmethod
    def forward(ctx, weight):
        ctx.set_materialize_grads(False)
        ctx.weight = weight
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx, grad):
        if grad is None:
            return None
        with torch.no_grad():
            find(ctx.weight).add_(grad)
        return mark_added(ctx.weight)
