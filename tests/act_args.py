"""Arguments of the act_* and dact_* ops, from the shape of the activation's value."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor

from cases import SHAPES, normal, scalar, shape_id

# How an activation gets its operands: swiglu takes them in two ways.
FORMS = {"gelu_tanh": "gelu_tanh", "silu": "silu", "gate_up": "swiglu", "gate_and_up": "swiglu"}
# One format per dtype: shapes do not interact with formats.
PAIRS = [
    (torch.float32, torch.float8_e5m2),
    (torch.bfloat16, torch.float8_e4m3fn),
    (torch.float16, torch.float8_e4m3fn),
]
Make = Callable[[tuple[int, ...], int], Tensor]  # of a shape and a seed


def cases_of(ops: list[str]) -> list[tuple]:
    """(op, form, shape, dtype, fmt): each op and form with each shape, and over the shapes with each dtype."""
    combinations = product(enumerate(ops), enumerate(FORMS), enumerate(SHAPES))
    return [(op, form, shape, *PAIRS[(i + j + k) % 3]) for (i, op), (j, form), (k, shape) in combinations]


def case_id(value: Any) -> str:
    return shape_id(value) if isinstance(value, tuple) else str(value).removeprefix("torch.")


def activations(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random data over the bend of the activations, with some far beyond it."""
    return (normal(shape, torch.float32, seed).clamp(-300, 300) / 4).to(dtype)


def operands(form: str, shape: tuple[int, ...], make: Make) -> tuple[Tensor, str, Tensor | None]:
    """``x, act, up`` for a value of this shape."""
    if form == "gate_up":
        return make((*shape[:-1], 2 * shape[-1]), 0), "swiglu", None
    up = make(shape, 1) if form == "gate_and_up" else None
    return make(shape, 0), FORMS[form], up


def act_args(
    op: str, x: Tensor, act: str, up: Tensor | None, fmt: torch.dtype, scale: float = 1.7
) -> tuple[Any, ...]:
    return (x, scalar(scale), fmt, act, up) if "cast" in op else (x, fmt, act, up)


def dact_args(
    op: str, g: Tensor, x: Tensor, act: str, up: Tensor | None, fmt: torch.dtype, scale: float = 1.7
) -> tuple[Any, ...]:
    return (g, *act_args(op, x, act, up, fmt, scale))


def gradient_for(x: Tensor, act: str, up: Tensor | None, seed: int = 2) -> Tensor:
    """Random data of the value's shape."""
    halved = act == "swiglu" and up is None
    shape = (*x.shape[:-1], x.shape[-1] // 2) if halved else tuple(x.shape)
    return normal(shape, x.dtype, seed)
