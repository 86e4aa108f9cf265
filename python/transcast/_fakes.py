"""Shapes and dtypes of every op's outputs, for torch.compile, export and opcheck. Sizes stay symbolic."""

import functools
import math

import torch
from torch import Tensor


def _scalar(like: Tensor) -> Tensor:
    return like.new_empty((), dtype=torch.float32)


def _transposed(x: Tensor, dtype: torch.dtype) -> Tensor:
    rows = math.prod(x.shape[:-1])
    return x.new_empty((x.shape[-1], (rows + 15) // 16 * 16), dtype=dtype)


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


def _value(x: Tensor, act: str, up: Tensor | None) -> Tensor:
    return x[..., : x.shape[-1] // 2] if act == "swiglu" and up is None else x


def _gradient(g: Tensor, act: str) -> Tensor:
    return g.new_empty((*g.shape[:-1], 2 * g.shape[-1])) if act == "swiglu" else g


def act_cast(x, scale, dtype, act, up=None):
    return cast(_value(x, act, up), scale, dtype)


def act_cast_transpose(x, scale, dtype, act, up=None):
    return cast_transpose(_value(x, act, up), scale, dtype)


def act_quantize(x, dtype, act, up=None, pow2=False, margin=0):
    return quantize(_value(x, act, up), dtype)


def act_quantize_transpose(x, dtype, act, up=None, pow2=False, margin=0):
    return quantize_transpose(_value(x, act, up), dtype)


def dact_cast_transpose_dbias(g, x, scale, dtype, act, up=None):
    return cast_transpose_dbias(_gradient(g, act), scale, dtype)


def dact_quantize_transpose_dbias(g, x, dtype, act, up=None, pow2=False, margin=0):
    return quantize_transpose_dbias(_gradient(g, act), dtype)


def dequantize(q, scale_inv, dtype):
    return _like(q, dtype)


def transpose(q):
    return _transposed(q, q.dtype)


def gemm(a, b, a_scale_inv, b_scale_inv, bias, epilogue, aux, out_dtype, fast_accum):
    return a.new_empty((*a.shape[:-1], b.shape[0]), dtype=out_dtype)


def gemm_out(a, b, a_scale_inv, b_scale_inv, bias, epilogue, aux, fast_accum, accumulate, out, aux_out):
    return None


def gemm_fp8(a, b, a_scale_inv, b_scale_inv, out_scale, bias, epilogue, dtype, fast_accum, aux_out):
    return a.new_empty((*a.shape[:-1], b.shape[0]), dtype=dtype), _scalar(a), _scalar(a)


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


def _on_one_device(fake):
    # torch runs the fake in place of the op as soon as one tensor among others is on the meta device: what it made for
    # the others would be memory that nobody has written.
    @functools.wraps(fake)
    def checked(*args):
        flat = [one for arg in args for one in (arg if isinstance(arg, (list, tuple)) else [arg])]
        devices = {arg.device for arg in flat if isinstance(arg, Tensor)}
        if len(devices) > 1:
            raise ValueError(
                f"transcast::{fake.__name__}: tensors must be on one device, got {', '.join(sorted(map(str, devices)))}"
            )
        return fake(*args)

    return checked


for _fake in FAKES:
    torch.library.register_fake(f"transcast::{_fake.__name__}", _on_one_device(_fake))
