"""Shapes and dtypes of every op's outputs, for torch.compile, export and meta tensors. Sizes stay symbolic."""

import math

import torch
from torch import Tensor

from ._fake_checks import activated, ceil16, checked, differentiated, product_shape


def _scalar(like: Tensor) -> Tensor:
    return like.new_empty((), dtype=torch.float32)


def _transposed(x: Tensor, dtype: torch.dtype) -> Tensor:
    rows = math.prod(x.shape[:-1])
    return x.new_empty((x.shape[-1], ceil16(rows)), dtype=dtype)


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
    return cast(activated("act_cast", x, act, up), scale, dtype)


def act_cast_transpose(x, scale, dtype, act, up=None):
    return cast_transpose(activated("act_cast_transpose", x, act, up), scale, dtype)


def act_quantize(x, dtype, act, up=None, pow2=False, margin=0):
    return quantize(activated("act_quantize", x, act, up), dtype)


def act_quantize_transpose(x, dtype, act, up=None, pow2=False, margin=0):
    return quantize_transpose(activated("act_quantize_transpose", x, act, up), dtype)


def dact_cast_transpose_dbias(g, x, scale, dtype, act, up=None):
    return cast_transpose_dbias(differentiated("dact_cast_transpose_dbias", g, x, act, up), scale, dtype)


def dact_quantize_transpose_dbias(g, x, dtype, act, up=None, pow2=False, margin=0):
    return quantize_transpose_dbias(differentiated("dact_quantize_transpose_dbias", g, x, act, up), dtype)


def dequantize(q, scale_inv, dtype):
    return _like(q, dtype)


def transpose(q):
    return _transposed(q, q.dtype)


def gemm(a, b, a_scale_inv, b_scale_inv, bias, epilogue, aux, out_dtype, fast_accum):
    return a.new_empty(product_shape("gemm", a, b), dtype=out_dtype)


def gemm_out(a, b, a_scale_inv, b_scale_inv, bias, epilogue, aux, fast_accum, accumulate, out, aux_out):
    product_shape("gemm_out", a, b)


def gemm_fp8(a, b, a_scale_inv, b_scale_inv, out_scale, bias, epilogue, dtype, fast_accum, aux_out):
    return a.new_empty(product_shape("gemm_fp8", a, b), dtype=dtype), _scalar(a), _scalar(a)


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


for _fake in FAKES:
    torch.library.register_fake(f"transcast::{_fake.__name__}", checked(_fake))
