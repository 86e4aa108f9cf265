"""Shapes and dtypes of every op's outputs, for torch.compile, export and meta tensors. Sizes stay symbolic.

What an op refuses by dtype or shape its fake refuses in the same words: a model that is built on the meta
device, or traced, would go wrong later and elsewhere otherwise. Values, strides and memory stay with the ops,
and whether a GEMM's scales, bias, aux and out go together.
"""

import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ._checks import FP8, HIGH_PRECISION, MAX_MARGIN

# --- what the arguments must be -------------------------------------------------------------------

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


def _activated(op: str, x: Tensor, act: str, up: Tensor | None) -> Tensor:
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


def _differentiated(op: str, g: Tensor, x: Tensor, act: str, up: Tensor | None) -> Tensor:
    """A tensor of the shape of the activation's gradient, once its arguments are checked."""
    _check_operand(op, "g", g, _activated(op, x, act, up), x)
    return g.new_empty((*g.shape[:-1], 2 * g.shape[-1])) if act == "swiglu" else g


def _ceil16(size: int | torch.SymInt) -> int | torch.SymInt:
    return (size + 15) // 16 * 16


def _product_shape(op: str, a: Tensor, b: Tensor) -> tuple[int | torch.SymInt, ...]:
    _require(a.dim() >= 1, op, "a", "must have at least one dimension, got shape ()")
    _require(b.dim() == 2, op, "b", "must be [N, K], got shape ", b.shape)
    formats = "must be float8_e4m3fn when a is float8_e5m2, got "
    _require(torch.float8_e4m3fn in (a.dtype, b.dtype), op, "b", formats, b.dtype)
    k, other = a.shape[-1], b.shape[-1]
    # One condition: asked one by one, they would make a graph for each way to meet them.
    fits = (k == other) | (k == _ceil16(other)) | (other == _ceil16(k))
    columns = "must have as many columns as a (or one of them that number rounded up to a multiple of 16)"
    _require(fits, op, "b", columns, ", got a with ", k, " and b with ", other)
    return (*a.shape[:-1], b.shape[0])


# --- what the ops return --------------------------------------------------------------------------


def _scalar(like: Tensor) -> Tensor:
    return like.new_empty((), dtype=torch.float32)


def _transposed(x: Tensor, dtype: torch.dtype) -> Tensor:
    rows = math.prod(x.shape[:-1])
    return x.new_empty((x.shape[-1], _ceil16(rows)), dtype=dtype)


def _like(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


def amax(x):
    return _scalar(x)


def cast(x, scale, dtype):
    return _like(x, dtype), _scalar(x), _scalar(x)


def cast_transpose(x, scale, dtype):
    return _like(x, dtype), _scalar(x), _transposed(x, dtype), _scalar(x)


def cast_transpose_dbias(x, scale, dtype):
    dbias = x.new_empty((x.shape[-1],), dtype=torch.float32)
    return _like(x, dtype), _scalar(x), _transposed(x, dtype), dbias, _scalar(x)


def quantize(x, dtype, pow2=False, margin=0):
    return _like(x, dtype), _scalar(x)


def quantize_transpose(x, dtype, pow2=False, margin=0):
    return _like(x, dtype), _scalar(x), _transposed(x, dtype), _scalar(x)


def quantize_transpose_dbias(x, dtype, pow2=False, margin=0):
    dbias = x.new_empty((x.shape[-1],), dtype=torch.float32)
    return _like(x, dtype), _scalar(x), _transposed(x, dtype), _scalar(x), dbias


def multi_quantize_transpose(xs, dtype, pow2=False, margin=0):
    results = [quantize_transpose(x, dtype) for x in xs]
    return tuple([result[i] for result in results] for i in range(4))


def act_cast(x, scale, dtype, act, up=None):
    return cast(_activated("act_cast", x, act, up), scale, dtype)


def act_cast_transpose(x, scale, dtype, act, up=None):
    return cast_transpose(_activated("act_cast_transpose", x, act, up), scale, dtype)


def act_quantize(x, dtype, act, up=None, pow2=False, margin=0):
    return quantize(_activated("act_quantize", x, act, up), dtype)


def act_quantize_transpose(x, dtype, act, up=None, pow2=False, margin=0):
    return quantize_transpose(_activated("act_quantize_transpose", x, act, up), dtype)


def dact_cast_transpose_dbias(g, x, scale, dtype, act, up=None):
    return cast_transpose_dbias(_differentiated("dact_cast_transpose_dbias", g, x, act, up), scale, dtype)


def dact_quantize_transpose_dbias(g, x, dtype, act, up=None, pow2=False, margin=0):
    return quantize_transpose_dbias(_differentiated("dact_quantize_transpose_dbias", g, x, act, up), dtype)


def dequantize(q, scale_inv, dtype):
    return _like(q, dtype)


def transpose(q):
    return _transposed(q, q.dtype)


def gemm(a, b, a_scale_inv, b_scale_inv, bias, epilogue, aux, out_dtype, fast_accum):
    return a.new_empty(_product_shape("gemm", a, b), dtype=out_dtype)


def gemm_out(a, b, a_scale_inv, b_scale_inv, bias, epilogue, aux, fast_accum, accumulate, out, aux_out):
    _product_shape("gemm_out", a, b)


def gemm_fp8(a, b, a_scale_inv, b_scale_inv, out_scale, bias, epilogue, dtype, fast_accum, aux_out):
    return a.new_empty(_product_shape("gemm_fp8", a, b), dtype=dtype), _scalar(a), _scalar(a)


FAKES = (
    amax,
    cast,
    cast_transpose,
    cast_transpose_dbias,
    quantize,
    quantize_transpose,
    quantize_transpose_dbias,
    multi_quantize_transpose,
    act_cast,
    act_cast_transpose,
    act_quantize,
    act_quantize_transpose,
    dact_cast_transpose_dbias,
    dact_quantize_transpose_dbias,
    dequantize,
    transpose,
    gemm,
    gemm_out,
    gemm_fp8,
)


def _given(names: tuple[str, ...], values: tuple) -> Iterator[tuple[str, str, object]]:
    """(name, how messages call it, value) of each argument, and of each element of a list; without None."""
    for name, value in zip(names, values):
        if isinstance(value, (list, tuple)):
            yield from ((name, f"{name}[{i}]", one) for i, one in enumerate(value))
        elif value is not None:
            yield name, name, value


def _checked(fake):
    op = fake.__name__
    names = fake.__code__.co_varnames[: fake.__code__.co_argcount]

    @functools.wraps(fake)
    def checked(*args):
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

    return checked


for _fake in FAKES:
    torch.library.register_fake(f"transcast::{_fake.__name__}", _checked(_fake))
