"""FP8 copies of weights that last for one optimizer step.

What bounds the life of a copy is the caller: the ``with`` block of ``cached_weights``, or the micro-batch
flag of ``FP8Linear.forward``. The checks in here are a second net. They cannot be the first: fused
optimizers, FSDP2, ``.data`` writes and flat buffers change a weight without moving its version counter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from .recipes import Tensorwise

E4M3 = torch.float8_e4m3fn
_quantize = torch.ops.transcast.quantize.default
_quantize_transpose = torch.ops.transcast.quantize_transpose.default
_transpose = torch.ops.transcast.transpose.default


class _StepCounter:
    """Counts the steps of all torch optimizers, from the first weight that is cached on."""

    def __init__(self) -> None:
        self.steps = 0
        self._registered = False

    def start(self) -> None:
        # Not at import: a global hook is none of a program's business that caches no weights.
        if not self._registered:
            register_optimizer_step_post_hook(self._on_step)
            self._registered = True

    def _on_step(self, *_: object) -> None:
        self.steps += 1


_counter = _StepCounter()


class _Entry(NamedTuple):
    """One weight in FP8: data and inverse scales of one cast, and what they were made from."""

    weight: Tensor  # Not a weak reference: torch swaps no tensor that has one (swap_tensors).
    state: tuple
    q: Tensor
    scale_inv: Tensor
    q_t: Tensor | None
    scale_inv_t: Tensor | None


class WeightCache:
    """The FP8 copy of one layer's weight.

    An entry is replaced as a whole, never changed, so threads that share a layer see one cast or the other. A
    copy or a pickle of the cache is empty: it belongs to the tensor it was made from.
    """

    def __init__(self) -> None:
        self.scopes = 0
        self.name: str | None = None
        self._entry: _Entry | None = None

    def __reduce__(self) -> tuple:
        return WeightCache, ()

    def drop(self) -> None:
        self._entry = None

    def get(
        self, layer: nn.Module, weight: Tensor, recipe: Tensorwise, with_transpose: bool, first: bool
    ) -> tuple:
        """``(q, scale_inv, q_t, scale_inv_t)`` of ``weight``; cast anew if ``first`` or if it may differ."""
        entry = self._entry
        state = _state_of(weight, recipe)
        if first or entry is None or entry.weight is not weight or entry.state != state:
            _counter.start()
            # No inference tensors: a later call may save this copy for backward.
            with torch.inference_mode(False), torch.no_grad():
                entry = _Entry(weight, state, *_cast(weight, recipe, with_transpose))
            self._entry = entry
        elif os.environ.get("TRANSCAST_CHECK_CACHE") == "1":
            self._compare(layer, entry, weight, recipe)
        if with_transpose and entry.q_t is None:
            self._entry = entry = entry._replace(q_t=_transpose(entry.q), scale_inv_t=entry.scale_inv)
        return entry[2:]

    def _compare(self, layer: nn.Module, entry: _Entry, weight: Tensor, recipe: Tensorwise) -> None:
        with torch.no_grad():
            q, scale_inv = _quantize(weight, E4M3, recipe.pow2, recipe.margin)
        same_data = torch.equal(q.view(torch.uint8), entry.q.view(torch.uint8))
        if not same_data or not torch.equal(scale_inv.view(torch.int32), entry.scale_inv.view(torch.int32)):
            raise RuntimeError(
                f"TRANSCAST_CHECK_CACHE: the FP8 copy of {self.name or layer}'s weight is stale: the weight "
                "was written since it was cast, by something that moved neither its address nor its version "
                "nor a torch optimizer. Leave the cached_weights() block before weights change, or pass "
                "is_first_microbatch=True on the first micro-batch after they did."
            )


def _cast(weight: Tensor, recipe: Tensorwise, with_transpose: bool) -> tuple:
    if with_transpose:
        return _quantize_transpose(weight, E4M3, recipe.pow2, recipe.margin)
    return *_quantize(weight, E4M3, recipe.pow2, recipe.margin), None, None


def _state_of(weight: Tensor, recipe: Tensorwise) -> tuple:
    return weight.data_ptr(), weight._version, weight.dtype, _counter.steps, recipe


@contextmanager
def cached_weights(model: nn.Module) -> Iterator[nn.Module]:
    """Casts the weights of all ``FP8Linear`` layers of ``model`` to FP8 once, for several forward passes.

    Without it a layer casts its weight on every forward. Inside the block it does so on first use, keeps data
    and inverse scale together (1 byte per weight, 2 where a gradient flows to the layer's input), and drops
    both when the outermost block ends. Results are bit for bit those of an uncached model. Meant for gradient
    accumulation, with the optimizer's step outside::

        with tc.cached_weights(model):
            for batch in micro_batches:
                loss(model(batch)).backward()
        optimizer.step()

    Weights must not change inside the block. A change that moves the weight's address, its version counter or
    a torch optimizer's step is noticed and the weight cast anew; one by ``.data``, by a flat buffer or by
    foreign code is not. With ``TRANSCAST_CHECK_CACHE=1`` in the environment every use compares the copy with
    a fresh cast and raises a RuntimeError that names the layer if they differ. Copies are not part of the
    state dict, of copies and of pickles of a model. Under ``torch.compile`` nothing is cached, with the same
    results. Layers with weights in FP8 already (``quantize_weights_``) and layers with the recipe ``None``
    have nothing to cache.

    Yields:
        ``model``.
    """
    from .convert import close_bypasses  # Not at import: it imports this module.

    close_bypasses(model)
    caches = []
    for name, module in model.named_modules():
        cache = getattr(module, "_weight_cache", None)
        if isinstance(cache, WeightCache):
            cache.name, cache.scopes = name or None, cache.scopes + 1
            caches.append(cache)
    try:
        yield model
    finally:
        for cache in caches:
            cache.scopes -= 1
            if cache.scopes == 0:
                cache.drop()
