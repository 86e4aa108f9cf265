"""``FP8Linear``: a linear layer whose three products run in FP8."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from . import _fp8_weights, recipes
from ._autograd import fp8_linear
from ._weight_cache import WeightCache
from .functional import checked_wgrad_into, linear, product
from .recipes import Tensorwise

__all__ = ["FP8Linear", "linear"]

E4M3 = torch.float8_e4m3fn
_is_compiling = torch.compiler.is_compiling


class FP8Linear(nn.Linear):
    """``nn.Linear`` whose products run in FP8: e4m3 x e4m3 forward, e5m2 gradients backward. See ``linear``.

    A drop-in: constructor, parameters, initialization and state-dict keys are those of ``nn.Linear``, so
    dicts load strictly in both directions (until ``quantize_weights_``, which adds a key). Parameters stay in high precision (any of FP32, BF16, FP16) and
    train with any optimizer. Works under autocast, activation checkpointing, DDP, FSDP2 (convert first, then
    ``fully_shard``) and ``torch.compile(fullgraph=True)``. Between forward and backward a layer holds its
    weight and its input as FP8, 1 byte per element, also where FSDP2 has freed the unsharded weight;
    activation checkpointing avoids that.

    Args:
        in_features: K.
        out_features: N. Neither needs to be a multiple of anything.
        bias: Whether the layer has a bias.
        device: Of the parameters.
        dtype: Of the parameters; products need FP32, BF16 or FP16.
        recipe: Where scales come from: ``"tensorwise"``, a recipe of ``transcast.recipes``, or None for high
            precision.
        wgrad_into: ``"main_grad"`` adds the weight's gradient to ``weight.main_grad``, an FP32 or BF16 tensor
            of the weight's shape that the trainer provides, instead of ``weight.grad``; it is never
            overwritten, and not changed if autograd is asked for other gradients only, as by
            ``torch.autograd.grad(loss, x)``. Once added, ``weight.grad_added_to_main_grad`` is True. If that
            attribute was there before (Megatron), autograd gets a stand-in gradient so that hooks fire, zeros
            if ``weight.zero_out_wgrad``, else uninitialized. Not for FSDP2, where weights carry no
            ``main_grad``. ``torch.compile`` breaks the graph at such a layer.

    Raises:
        ValueError: The recipe or ``wgrad_into`` is unknown or not available in this version.
        TypeError: The recipe is neither a name, a recipe nor None.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Tensorwise | str | None = "tensorwise",
        wgrad_into: str | None = None,
    ) -> None:
        resolved = recipes.resolve(recipe), checked_wgrad_into(wgrad_into)
        super().__init__(in_features, out_features, bias, device, dtype)
        self._configure(*resolved)

    def _configure(self, recipe: Tensorwise | None, wgrad_into: str | None) -> None:
        self._recipe = recipe
        self._wgrad_into = wgrad_into
        self._weight_cache = WeightCache()

    @property
    def recipe(self) -> Tensorwise | None:
        """The recipe, None for high precision. Assign, or use ``set_recipe``, to switch; takes names too.

        Raises:
            ValueError: The recipe is not available; or it is None and the layer has FP8 weights
                (``quantize_weights_``): there is no high-precision weight left to compute with. ``to_linear``
                dequantizes it.
        """
        return self._recipe

    @recipe.setter
    def recipe(self, recipe: Tensorwise | str | None) -> None:
        resolved = recipes.resolve(recipe)
        if resolved is None and _fp8_weights.is_quantized(self):
            raise ValueError(
                "recipe=None needs the high-precision weight, which quantize_weights_ has dropped; "
                "to_linear() makes an nn.Linear of the dequantized weight"
            )
        self._recipe = resolved

    @property
    def wgrad_into(self) -> str | None:
        """``"main_grad"`` or None."""
        return self._wgrad_into

    def forward(self, input: Tensor, is_first_microbatch: bool | None = None) -> Tensor:
        """(..., in_features) -> (..., out_features), see ``linear``.

        Args:
            input: The activations.
            is_first_microbatch: None casts the weight on every call (outside ``cached_weights``). True casts
                it and keeps the FP8 copy, False uses that copy (and makes it if there is none): for loops
                over micro-batches between which weights do not change. ``cached_weights`` does the same
                without a flag and documents what is checked. Ignored under ``torch.compile``, with the same
                results.
        """
        weight, recipe = self.weight, self._recipe
        if weight.dtype is E4M3:
            scale_inv = _fp8_weights.scale_inv_of(self)
            return fp8_linear(input, weight, self.bias, recipe, False, (None, scale_inv, None, None))
        into_main_grad = self._wgrad_into is not None
        if _is_compiling() or recipe is None:
            return product(input, weight, self.bias, recipe, into_main_grad)
        cache = self._weight_cache
        # Inference tensors are not cached: they have no version counter.
        if (cache.scopes or is_first_microbatch is not None) and not weight.is_inference():
            with_transpose = input.requires_grad and torch.is_grad_enabled()
            copies = cache.get(self, weight, recipe, with_transpose, is_first_microbatch is True)
            return fp8_linear(input, weight, self.bias, recipe, into_main_grad, copies)
        return fp8_linear(input, weight, self.bias, recipe, into_main_grad)

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, recipe: Tensorwise | str | None = "tensorwise", wgrad_into: str | None = None
    ) -> FP8Linear:
        """An ``FP8Linear`` that shares the parameters of ``linear``: the same objects, so that optimizers and
        tied weights keep working. Buffers, ``requires_grad`` and train/eval mode come along. Hooks are
        shared: one that is added to or removed from either module, by a handle too, is so for both.

        For a ``nn.TransformerEncoderLayer`` use ``convert``: in evaluation torch's fast path there reads the
        weights of the linears and does not call them. ``convert``, ``set_recipe``, ``quantize_weights_`` and
        ``cached_weights`` of a model switch that path off; this method cannot.

        Raises:
            TypeError: ``linear`` is not exactly an ``nn.Linear`` (a subclass may compute something else), or
                its ``forward`` was replaced on the instance.
        """
        reason = why_not(linear)
        if reason:
            raise TypeError(f"FP8Linear.from_linear: expected a plain nn.Linear, got {reason}")
        resolved = recipes.resolve(recipe), checked_wgrad_into(wgrad_into)
        layer = cls.__new__(cls)
        layer.__dict__.update(_module_state(linear, layer))
        layer._configure(*resolved)
        return layer

    def to_linear(self) -> nn.Linear:
        """An ``nn.Linear`` that shares this layer's parameters, hooks and mode.

        FP8 weights are dequantized into a new parameter of the dtype they had before, without
        ``requires_grad``.

        Raises:
            TypeError: The layer is parametrized (``torch.nn.utils.parametrize``).
        """
        if hasattr(self, "parametrizations"):
            raise TypeError(
                "FP8Linear.to_linear: the layer is parametrized; call "
                "torch.nn.utils.parametrize.remove_parametrizations first"
            )
        layer = nn.Linear.__new__(nn.Linear)
        state = _module_state(self, layer)
        for name in ("_recipe", "_wgrad_into", "_weight_cache", "_weight_dtype"):
            state.pop(name, None)
        layer.__dict__.update(state)
        if _fp8_weights.is_quantized(self):
            del layer.weight_scale_inv
            layer.weight = _fp8_weights.dequantized(self)
        return layer

    def extra_repr(self) -> str:
        default = self._recipe == recipes.resolve("tensorwise")
        parts = [super().extra_repr(), f"recipe={'tensorwise' if default else self._recipe}"]
        if self._wgrad_into is not None:
            parts.append(f"wgrad_into={self._wgrad_into}")
        if _fp8_weights.is_quantized(self):
            parts.append("weight=float8_e4m3fn")
        return ", ".join(parts)

    def _quantize_weight(self, parameter: nn.Parameter, scale_inv: Tensor) -> None:
        # Nothing else says which dtype the weight had: to_linear needs it.
        self._weight_dtype = self.weight.dtype
        self._weight_cache.drop()
        self.weight = parameter
        self.register_buffer("weight_scale_inv", scale_inv)

    def _apply(self, fn, recurse=True):
        self._weight_cache.drop()
        if not _fp8_weights.is_quantized(self):
            return super()._apply(fn, recurse)
        self._weight_dtype = fn(self.weight.new_empty(0, dtype=self._weight_dtype)).dtype
        scale_inv = self.weight_scale_inv
        super()._apply(_fp8_weights.moving_only(self, fn), recurse)
        _fp8_weights.keep_tied(self, scale_inv)
        return self

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        state = _fp8_weights.translated(self, state_dict, prefix, error_msgs)
        if state is not None:
            super()._load_from_state_dict(
                state, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
            )


def why_not(module: nn.Module) -> str | None:
    """What ``module`` is that it cannot become an ``FP8Linear``, None if it can."""
    if not isinstance(module, nn.Linear):
        return f"a {type(module).__qualname__}"
    if type(module) is not nn.Linear:
        return f"a subclass of nn.Linear: {type(module).__qualname__}"
    if "forward" in vars(module):
        return "an nn.Linear whose forward was replaced on the instance"
    return None


class _NewestAlive:
    """In place of the weak reference to its module that a shared hook holds: to the newest that is alive."""

    def __init__(self, new: nn.Module, older: Callable[[], nn.Module | None]) -> None:
        self._new, self._older = weakref.ref(new), older

    def __call__(self) -> nn.Module | None:
        new = self._new()
        return self._older() if new is None else new


def _module_state(module: nn.Module, new: nn.Module) -> dict[str, Any]:
    """The attributes of ``module`` for ``new``, a module that shares its tensors and hooks.

    Containers are copied, except those of hooks: a handle such as that of ``register_forward_hook`` removes
    its hook from the one dict that it knows.
    """
    state = {
        key: copy.copy(value) if isinstance(value, dict | set) and "_hooks" not in key else value
        for key, value in vars(module).items()
    }
    for hook in module._load_state_dict_pre_hooks.values():
        if hook.with_module:
            hook.module = _NewestAlive(new, hook.module)
    state.pop("_compiled_call_impl", None)  # Module.compile() puts the old module's forward there.
    return state
