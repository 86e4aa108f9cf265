"""What fakes refuse: wrong dtypes and shapes, in the words of the ops.

A model that is built on the meta device, or traced, would go wrong later and elsewhere otherwise. Values, strides and
memory stay with the ops, and whether a GEMM's scales, bias, aux and out go together. Sizes stay symbolic.
"""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from ._checks import FP8, HIGH_PRECISION, MAX_MARGIN

# By the names of arguments, which mean the same in every op (dequantize has a dtype of its own).
_DTYPES = {
    **dict.fromkeys(("dtype", "q", "a", "b"), FP8),
    **dict.fromkeys(("x", "xs", "out_dtype", "bias", "aux", "out", "aux_out"), HIGH_PRECISION),
}
_MAX_DIMS = 64
_SCALARS = ("scale", "scale_inv", "out_scale")
_TRANSPOSED = ("x", "xs", "q")  # by the ops that have it in their name
_CHOICES = {
    "act": (("gelu_tanh", "silu", "swiglu"), "must be gelu_tanh, silu or swiglu"),
    "epilogue": (("none", "relu", "gelu_tanh", "dgelu"), "must be none, relu, gelu_tanh or dgelu"),
}


def _text(word: object) -> str:
    if isinstance(word, torch.dtype):
        return str(word).removeprefix("torch.")
    return str(tuple(word)) if isinstance(word, torch.Size) else str(word)


def _require(holds: bool | torch.SymBool, op: str, argument: str, *words: object) -> None:
    def message() -> str:  # put together only when it is needed: printing symbolic sizes takes time
        return f"transcast::{op}: {argument} {''.join(map(_text, words))}"

    if isinstance(holds, torch.SymBool):
        torch._check_value(holds, message)
    elif not holds:
        raise ValueError(message())


def _check_argument(op: str, name: str, argument: str, value: object) -> None:
    """``argument`` is how messages call the value: ``name``, or ``name[i]`` in a list."""
    if name in _DTYPES:
        dtype = value.dtype if isinstance(value, Tensor) else value
        dtypes, expected = HIGH_PRECISION if (op, name) == ("dequantize", "dtype") else _DTYPES[name]
        _require(dtype in dtypes, op, argument, expected, ", got ", dtype)
        if isinstance(value, Tensor):
            dims = f"must have at most {_MAX_DIMS} dimensions, got "
            _require(value.dim() <= _MAX_DIMS, op, argument, dims, value.dim())
    if name in _TRANSPOSED and "transpose" in op:
        dims = "must have at least one dimension to be transposed, got shape "
        _require(value.dim() >= 1, op, argument, dims, value.shape)
    if name in _SCALARS:
        _require(value.dtype == torch.float32, op, argument, "must be float32, got ", value.dtype)
        _require(value.numel() == 1, op, argument, "must hold one element, got shape ", value.shape)
    if name in _CHOICES:
        choices, expected = _CHOICES[name]
        _require(value in choices, op, argument, expected, ", got ", value)
    if name == "margin":
        margins = f"must be between -{MAX_MARGIN} and {MAX_MARGIN}, got "
        _require(abs(value) <= MAX_MARGIN, op, argument, margins, value)


def _check_operand(op: str, argument: str, operand: Tensor, value: Tensor, x: Tensor) -> None:
    """``up`` or ``g``: the dtype of x, and the shape of the activation's ``value``."""
    dtypes = ("must have the dtype of x, ", x.dtype, ", got ", operand.dtype)
    _require(operand.dtype == x.dtype, op, argument, *dtypes)
    shapes = ("must have the shape of the activation's value, ", value.shape, ", got ", operand.shape)
    _require(operand.dim() == value.dim(), op, argument, *shapes)
    for size, other in zip(operand.shape, value.shape):
        _require(size == other, op, argument, *shapes)


def activated(op: str, x: Tensor, act: str, up: Tensor | None) -> Tensor:
    """A tensor of the shape of the activation's value, once its arguments are checked."""
    if act != "swiglu":
        _require(up is None, op, "up", "must be None unless act is swiglu, got a tensor beside ", act)
        return x
    if up is not None:
        _check_operand(op, "up", up, x, x)
        return x
    _require(x.dim() >= 1, op, "x", "must have at least one dimension, [gate | up], got shape ()")
    halves = "must hold [gate | up] of equal size in its last dimension, got shape "
    _require(x.shape[-1] % 2 == 0, op, "x", halves, x.shape)
    return x[..., : x.shape[-1] // 2]


def differentiated(op: str, g: Tensor, x: Tensor, act: str, up: Tensor | None) -> Tensor:
    """A tensor of the shape of the activation's gradient, once its arguments are checked."""
    _check_operand(op, "g", g, activated(op, x, act, up), x)
    return g.new_empty((*g.shape[:-1], 2 * g.shape[-1])) if act == "swiglu" else g


def ceil16(size: int | torch.SymInt) -> int | torch.SymInt:
    return (size + 15) // 16 * 16


def product_shape(op: str, a: Tensor, b: Tensor) -> tuple[int | torch.SymInt, ...]:
    _require(a.dim() >= 1, op, "a", "must have at least one dimension, got shape ()")
    _require(b.dim() == 2, op, "b", "must be [N, K], got shape ", b.shape)
    formats = "must be float8_e4m3fn when a is float8_e5m2, got "
    _require(torch.float8_e4m3fn in (a.dtype, b.dtype), op, "b", formats, b.dtype)
    k, other = a.shape[-1], b.shape[-1]
    # One condition: asked one by one, they would make a graph for each way to meet them.
    fits = (k == other) | (k == ceil16(other)) | (other == ceil16(k))
    columns = "must have as many columns as a (or one of them that number rounded up to a multiple of 16)"
    _require(fits, op, "b", columns, ", got a with ", k, " and b with ", other)
    return (*a.shape[:-1], b.shape[0])


def _given(names: tuple[str, ...], values: tuple) -> Iterator[tuple[str, str, object]]:
    """(name, how messages call it, value) of each argument, and of each element of a list; without None."""
    for name, value in zip(names, values):
        if isinstance(value, (list, tuple)):
            yield from ((name, f"{name}[{i}]", one) for i, one in enumerate(value))
        elif value is not None:
            yield name, name, value


def checked(fake):
    op = fake.__name__
    names = fake.__code__.co_varnames[: fake.__code__.co_argcount]

    @functools.wraps(fake)
    def run(*args):
        given = list(_given(names, args))
        # torch runs the fake in place of the op as soon as one tensor among others is on the meta device:
        # what it made for the others would be memory that nobody has written.
        devices = {value.device for _, _, value in given if isinstance(value, Tensor)}
        if len(devices) > 1:
            got = ", ".join(sorted(map(str, devices)))
            raise ValueError(f"transcast::{op}: tensors must be on one device, got {got}")
        for one in given:
            _check_argument(op, *one)
        return fake(*args)

    return run
