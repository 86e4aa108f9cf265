"""``tc.linear``: a linear layer as a function, its three products in FP8."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _main_grad, recipes
from ._autograd import fp8_linear
from .recipes import Tensorwise

_is_compiling = torch.compiler.is_compiling


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    recipe: Tensorwise | str | None = "tensorwise",
    *,
    wgrad_into: str | None = None,
) -> Tensor:
    """Differentiable ``y = x . weight^T + bias`` with FP8 products.

    For trainers that have their own Linear class; ``FP8Linear`` is the module.

    Forward: ``x`` and ``weight`` are cast to e4m3, each with a scale of its own, multiplied with FP32
    accumulation (``fast_accum`` on). Backward: the gradient of ``y`` is cast to e5m2; ``dx = g . weight`` and
    ``dweight = g^T . x`` are FP8 products with ``fast_accum`` off, ``dbias`` is the FP32 sum of the uncast
    gradient, with the same bits whatever else is frozen. What an input without ``requires_grad`` would need
    is not computed. Saved for backward are FP8 tensors (``x`` transposed, tokens padded to a multiple of 16,
    if ``weight`` needs a gradient; ``weight`` transposed if ``x`` does) and their inverse scales, nothing
    else.

    A NaN or an Inf anywhere in ``x``, ``weight`` or the gradient makes every element of the products it
    enters NaN: the inverse scale of a tensor that is not finite is NaN. Casts of finite values never
    overflow. The product may: in its own dtype, as any product, and where it leaves the range of FP32 before
    both inverse scales are applied, which takes magnitudes beyond about 1e33.

    Args:
        x: (..., K), FP32, BF16 or FP16, any strides, 1-D to N-D; any number of tokens, 0 included.
        weight: (N, K), FP32, BF16 or FP16, not necessarily the dtype of ``x``: it is cast to FP8 straight
            from there.
        bias: (N,) or None. Added before the result is rounded, itself rounded to BF16, or to FP16 for FP16
            results.
        recipe: Where scales come from: a name, a recipe of ``transcast.recipes``, or None for ``F.linear``.
        wgrad_into: None: the weight's gradient goes to ``weight.grad``. ``"main_grad"``: it is added to
            ``weight.main_grad`` (FP32 or BF16), see ``FP8Linear``.

    Returns:
        (..., N), contiguous, in the dtype of ``x``; under autocast in the autocast dtype. Gradients have the
        dtype of what they belong to.

    Raises:
        ValueError: K of ``x`` and ``weight`` differ, ``x`` is 0-D, ``weight`` not 2-D, ``bias`` not (N,), ``x``, ``weight`` and ``bias`` are not on
            one device, a dtype or the recipe is not supported, ``wgrad_into`` is unknown. In backward, if
            ``main_grad`` has a wrong dtype, shape or device; nothing is computed then.
        TypeError: The recipe is neither a name, a recipe nor None.
        RuntimeError: In backward, if there is no ``main_grad``; if the backward itself is differentiated
            (``create_graph=True``) or runs inside a ``torch.func`` transform. In forward, if an input carries
            a forward-mode tangent.
    """
    return product(x, weight, bias, recipes.resolve(recipe), checked_wgrad_into(wgrad_into) is not None)


def checked_wgrad_into(wgrad_into: str | None) -> str | None:
    if wgrad_into not in (None, "main_grad"):
        raise ValueError(f"wgrad_into must be None or 'main_grad', got {wgrad_into!r}")
    return wgrad_into


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, recipe: Tensorwise | None, into_main_grad: bool
) -> Tensor:
    """``linear`` with resolved arguments: FP8 or high precision, compiled or not."""
    if into_main_grad and _is_compiling():
        return _wgrad_into_main_grad(x, weight, bias, recipe)
    return _product(x, weight, bias, recipe, into_main_grad)


def _product(
    x: Tensor, weight: Tensor, bias: Tensor | None, recipe: Tensorwise | None, into_main_grad: bool
) -> Tensor:
    if recipe is not None:
        return fp8_linear(x, weight, bias, recipe, into_main_grad)
    if into_main_grad and weight.requires_grad and torch.is_grad_enabled():
        weight = _main_grad.Redirect.apply(weight)
    return F.linear(x, weight, bias)


# Not compiled: its backward writes to an attribute of the weight. This is torch.compiler.disable without its
# import of the compiler, which would take longer than all of transcast's; the name is what fullgraph's error
# shows.
@torch._disable_dynamo
def _wgrad_into_main_grad(
    x: Tensor, weight: Tensor, bias: Tensor | None, recipe: Tensorwise | None
) -> Tensor:
    # Not product: torch.export runs this function too, with is_compiling() still true.
    return _product(x, weight, bias, recipe, True)
