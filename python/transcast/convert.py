"""Converting models: ``convert``, ``set_recipe``, ``quantize_weights_``."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn

from . import _fp8_weights, recipes
from .linear import FP8Linear, why_not
from .recipes import Tensorwise

logger = logging.getLogger("transcast")
Filter = Callable[[nn.Module, str], bool]


@dataclass(frozen=True)
class ConvertReport:
    """What ``convert`` did to a model; at ``model.fp8_report``. Names are fully qualified, "" is the model
    itself.

    Attributes:
        converted: Names of the layers that are ``FP8Linear`` now.
        skipped: (name, reason) of every other ``nn.Linear``, subclasses included.
    """

    converted: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        lines = [f"converted {len(self.converted)} layer(s) to FP8, skipped {len(self.skipped)}"]
        lines += [f"  converted {name or '(model)'}" for name in self.converted]
        lines += [f"  skipped   {name or '(model)'}: {reason}" for name, reason in self.skipped]
        return "\n".join(lines)


def convert(
    model: nn.Module,
    recipe: Tensorwise | str | None = "tensorwise",
    filter_fn: Filter | None = None,
    skip: Iterable[str] = ("lm_head",),
) -> nn.Module:
    """Replaces the ``nn.Linear`` layers of ``model`` by ``FP8Linear``, in place, and reports what it did.

    Parameter objects stay the same (optimizers and tied weights keep working), as do hooks,
    ``requires_grad``, and train/eval mode; one layer under two names stays one layer. Only a plain
    ``nn.Linear`` is replaced: a subclass may compute something else, and is reported instead. Call it before
    ``fully_shard`` and ``torch.compile``.

    The report, a ``ConvertReport``, is at ``model.fp8_report`` and logged by the logger "transcast" at level
    INFO.

    Args:
        model: Any module; if it is an ``nn.Linear`` itself, use what is returned.
        recipe: Of the new layers: a name, a recipe of ``transcast.recipes``, or None for high precision.
        filter_fn: ``filter_fn(module, fqn) -> bool``, called for each plain ``nn.Linear``; False skips it.
        skip: Patterns (as in ``fnmatch``) of names to leave; each is compared with the fully qualified name
            and with its last part. By default ``lm_head``, the usual name of the output projection, which is
            sensitive to rounding; name it if it is called otherwise: ``skip=("head",)``.

    Returns:
        ``model``; a new ``FP8Linear`` if ``model`` is a plain ``nn.Linear``.

    Raises:
        ValueError: The recipe is not available. Nothing is changed then.
        TypeError: It is neither a name, a recipe nor None.

    Warns:
        UserWarning: The model has no ``FP8Linear`` afterwards.
    """
    recipe = recipes.resolve(recipe)
    patterns = (skip,) if isinstance(skip, str) else tuple(skip)
    plan, skipped = _plan(model, filter_fn, patterns)
    made: dict[nn.Module, FP8Linear] = {}
    for name, layer, parent in plan:
        if layer not in made:
            made[layer] = FP8Linear.from_linear(layer, recipe)
        if parent is None:
            model = made[layer]
        else:
            parent._modules[name.rpartition(".")[2]] = made[layer]
    close_bypasses(model)
    model.fp8_report = ConvertReport(tuple(name for name, _, _ in plan), tuple(skipped))
    logger.info("%s", model.fp8_report)
    if not any(isinstance(module, FP8Linear) for module in model.modules()):
        warnings.warn(f"transcast.convert: no layer was converted\n{model.fp8_report}", stacklevel=2)
    return model


def _plan(
    model: nn.Module, filter_fn: Filter | None, patterns: tuple[str, ...]
) -> tuple[list[tuple[str, nn.Module, nn.Module | None]], list[tuple[str, str]]]:
    """(name, layer, parent) for each place of a layer to convert, and (name, reason) for those to leave."""
    plan, skipped = [], []
    for name, module, parent in _places(model, "", None, set()):
        if not isinstance(module, nn.Linear):
            continue
        reason = _why_left(module, name, filter_fn, patterns)
        if reason is None:
            plan.append((name, module, parent))
        else:
            skipped.append((name, reason))
    return plan, skipped


def _places(
    module: nn.Module, name: str, parent: nn.Module | None, seen: set[nn.Module]
) -> Iterator[tuple[str, nn.Module, nn.Module | None]]:
    """(name, module, parent) for each attribute that holds a module.

    What is below a module under several names comes once: the names would multiply, without end in a cycle.
    """
    yield name, module, parent
    if module in seen:
        return
    seen.add(module)
    for key, child in module._modules.items():
        if child is not None:
            yield from _places(child, f"{name}.{key}" if name else key, module, seen)


def _why_left(
    module: nn.Linear, name: str, filter_fn: Filter | None, patterns: tuple[str, ...]
) -> str | None:
    if isinstance(module, FP8Linear):
        return f"is FP8Linear already, recipe={module.recipe}; set_recipe switches it"
    unfit = why_not(module)
    if unfit:
        return f"is {unfit}"
    matched = [p for p in patterns if fnmatchcase(name, p) or fnmatchcase(name.rpartition(".")[2], p)]
    if matched:
        return f"matches skip={matched[0]!r}"
    if module.weight.dtype not in _fp8_weights.HIGH_PRECISION:
        return f"has a weight of unsupported dtype {module.weight.dtype}"
    if filter_fn is not None and not filter_fn(module, name):
        return "rejected by filter_fn"
    return None


def close_bypasses(model: nn.Module) -> None:
    """Makes torch's own encoder layers call their linears: in evaluation they may only read the weights."""
    # These flags, each one condition among those for that path, have no other use.
    for module in model.modules():
        if not isinstance(module, nn.TransformerEncoderLayer | nn.TransformerEncoder):
            continue
        if not any(isinstance(part, FP8Linear) for part in module.modules()):
            continue
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        else:
            module.use_nested_tensor = False


def set_recipe(
    model: nn.Module, recipe: Tensorwise | str | None, filter_fn: Filter | None = None
) -> nn.Module:
    """Switches the recipe of the ``FP8Linear`` layers of ``model`` at run time.

    ``None`` is high precision: such a layer computes what ``nn.Linear`` does. For first and last layers, or
    to finish a training without FP8. Optimizer states, parameters and state dicts are not touched.

    Args:
        model: A converted model.
        recipe: A name, a recipe of ``transcast.recipes``, or None.
        filter_fn: ``filter_fn(module, fqn) -> bool``; only layers for which it is True are switched.

    Returns:
        ``model``.

    Raises:
        ValueError: The recipe is not available, or it is None and a layer has FP8 weights
            (``quantize_weights_``), which leaves it nothing to compute with in high precision. No layer is
            switched then.
        TypeError: It is neither a name, a recipe nor None.
    """
    recipe = recipes.resolve(recipe)
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, FP8Linear) and (filter_fn is None or filter_fn(module, name))
    ]
    quantized = [name or "(model)" for name, layer in layers if _fp8_weights.is_quantized(layer)]
    if recipe is None and quantized:
        raise ValueError(
            "set_recipe(None): quantize_weights_ has dropped the high-precision weights of "
            f"{', '.join(quantized)}; leave them out by filter_fn, or dequantize them with to_linear()"
        )
    for _, layer in layers:
        layer.recipe = recipe
    close_bypasses(model)
    return model


def quantize_weights_(model: nn.Module) -> nn.Module:
    """Drops the high-precision weights of all ``FP8Linear`` layers, 1 byte per weight remaining.

    For inference, or to train adapters beside them. ``weight`` becomes an e4m3 parameter without gradient,
    quantized by the layer's recipe, with the FP32 buffer ``weight_scale_inv`` of shape () beside it. The
    value of the weight is ``weight * weight_scale_inv``. Results are bit for bit what the layer gave before.
    Gradients still flow to inputs and biases; for that the weight is transposed on the fly. ``.half()``,
    ``.to(dtype)`` and the like leave FP8 weights and scales as they are, and devices move them.

    State dicts get one more key, ``weight_scale_inv``. A high-precision dict loads into such a model (weights
    are quantized on the way), and a dict with FP8 weights into an ``FP8Linear`` with high-precision ones
    (they are dequantized).

    Layers that are quantized already and layers with the recipe None are left alone. ``FP8Linear`` layers
    that share a weight go on sharing it; a module of another kind, such as an embedding, keeps the
    high-precision tensor.

    Returns:
        ``model``, changed in place.

    Raises:
        ValueError: A layer's weight is no parameter but computed from some, as by ``weight_norm``, or its
            dtype is not FP32, BF16 or FP16. Nothing is changed.
    """
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, FP8Linear)
        and module.recipe is not None
        and not _fp8_weights.is_quantized(module)
    ]
    for name, layer in layers:
        if "weight" not in layer._parameters:
            raise ValueError(
                f"quantize_weights_: {name or '(model)'}: the weight is no parameter (weight_norm, pruning)"
            )
        if layer.weight.dtype not in _fp8_weights.HIGH_PRECISION:
            raise ValueError(
                f"quantize_weights_: {name or '(model)'}: the weight must be FP32, BF16 or FP16, got "
                f"{layer.weight.dtype}"
            )
    done: dict[tuple[nn.Parameter, Tensorwise], tuple[nn.Parameter, torch.Tensor]] = {}
    for _, layer in layers:
        source = layer.weight, layer.recipe
        if source not in done:
            done[source] = _fp8_weights.quantized(layer)
        layer._quantize_weight(*done[source])
    close_bypasses(model)
    return model
