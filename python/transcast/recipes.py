"""Recipes: how a tensor gets the scale it is cast to FP8 with.

A recipe is a frozen dataclass; a string stands for that recipe's default instance, and ``None`` for high
precision (no FP8 at all). Every function and class that takes ``recipe=`` takes all three forms.
"""

from __future__ import annotations

from dataclasses import dataclass

from ._checks import MAX_MARGIN


@dataclass(frozen=True)
class Tensorwise:
    """Current scaling, one scale per tensor: taken at every cast from the tensor's largest magnitude.

    ``scale = fp8_max / amax(x)``, one FP32 division rounded to nearest, times ``2**-margin``, clamped to
    [2**-126, 2**126]; ``fp8_max`` is 448 for e4m3 (activations, weights) and 57344 for e5m2 (gradients). A
    tensor of zeros gets the scale 1. A NaN or an Inf makes the inverse scale NaN, so the product shows it.

    Args:
        pow2: Round the scale down to a power of two. Scaling is then exact, at the price of up to one bit of
            range.
        margin: Powers of two kept free above the largest value; an integer from 0 to 64.

    Raises:
        TypeError: ``pow2`` is no bool or ``margin`` is no int.
        ValueError: ``margin`` is negative (the largest values of every tensor would saturate) or above 64.
    """

    pow2: bool = False
    margin: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.pow2, bool):
            raise TypeError(f"Tensorwise: pow2 must be a bool, got {self.pow2!r}")
        if not isinstance(self.margin, int) or isinstance(self.margin, bool):
            raise TypeError(f"Tensorwise: margin must be an int, got {self.margin!r}")
        if not 0 <= self.margin <= MAX_MARGIN:
            raise ValueError(f"Tensorwise: margin must be from 0 to {MAX_MARGIN}, got {self.margin}")


_DEFAULTS = {"tensorwise": Tensorwise()}
_NOT_YET = ("rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8", "delayed", "static")


def resolve(recipe: Tensorwise | str | None) -> Tensorwise | None:
    """The recipe that ``recipe`` stands for: a name its default instance, an instance or ``None`` itself.

    Raises:
        ValueError: The name is unknown, or is that of a recipe which this version does not have yet.
        TypeError: ``recipe`` is something else, such as the class instead of an instance.
    """
    if recipe is None or isinstance(recipe, Tensorwise):
        return recipe
    available = ", ".join(repr(name) for name in _DEFAULTS)
    if not isinstance(recipe, str):
        raise TypeError(
            f"recipe must be a name ({available}), an instance such as Tensorwise(pow2=True), or None for "
            f"high precision; got {recipe!r}"
        )
    if recipe in _DEFAULTS:
        return _DEFAULTS[recipe]
    problem = "is not available in this version" if recipe in _NOT_YET else "is unknown"
    raise ValueError(f"recipe {recipe!r} {problem}; available: {available}, or None for high precision")
