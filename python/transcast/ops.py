"""The raw FP8 ops, on CPU and CUDA tensors.

Common to all of them:

- ``x`` is FP32, BF16 or FP16, of any strides and any leading dims; it counts as a matrix (R, C), C its last dim and R
  the product of the others (1 for a vector). Empty tensors give empty or zero outputs.
- ``dtype`` is ``torch.float8_e4m3fn`` (``E4M3``, max 448) or ``torch.float8_e5m2`` (``E5M2``, max 57344).
- The cast is ``fp8(float(x) * scale)``: FP32 product, round to nearest even, finite overflow and Inf saturate to the
  format's max, NaN becomes 0x7F, subnormals are exact. FP8 formats as in "FP8 Formats for Deep Learning" (Micikevicius
  et al., 2022) and the OCP 8-bit floating point specification.
- ``scale`` multiplies into FP8, ``scale_inv`` back out; ``amax`` is max |x| before scaling, NaN if x holds a NaN. All
  three are FP32 with one element, on the device of x.
- ``scale_inv`` is ``1 / scale``, or NaN if the data held Inf or NaN: such an overflow is never hidden by saturation.
  Finite values saturate silently only with a scale that is given, or a negative ``margin``: where ``amax * scale`` is
  above the format's max.
- ``q_t`` is the transposed data, (C, R rounded up to a multiple of 16), its padding zero.
- Ops have no autograd. With grad mode on and an input that requires grad they raise RuntimeError; use ``linear``, or
  call them from your own ``torch.autograd.Function``. The raw ``torch.ops.transcast.*`` do not raise: torch warns in
  backward, and no gradient reaches the input.
- ValueError: a tensor of a wrong dtype, shape, layout or device, or a value out of its range. TypeError: an argument
  that is no Tensor, dtype, bool, int or str where one is wanted. Both before anything is written.
"""

import torch
from torch import Tensor

from ._act_ops import (  # noqa: F401  public here
    act_cast,
    act_cast_transpose,
    act_quantize,
    act_quantize_transpose,
    dact_cast_transpose_dbias,
    dact_quantize_transpose_dbias,
)
from ._checks import check, check_list, check_scaling, check_types, e8m0_bytes, written
from ._results import (
    Cast,
    CastTranspose,
    CastTransposeDbias,
    GemmFp8,
    Quantized,
    QuantizedTranspose,
    QuantizedTransposeDbias,
)

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

_ops = torch.ops.transcast


def amax(x: Tensor) -> Tensor:
    """Largest ``|x|`` as FP32 of shape (): NaN if x holds a NaN, Inf if it holds Inf and no NaN, 0 if it is empty."""
    check("amax", x=x)
    return _ops.amax(x)


def cast(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Cast:
    """FP8 cast with a given scale, one read of x.

    Returns ``q`` (shape of x), ``scale_inv`` (), ``amax`` (). ``q = fp8(float(x) * scale)``.
    """
    check("cast", dtype, x=x, scale=scale)
    return Cast(*_ops.cast(x, scale, dtype))


def cast_transpose(x: Tensor, scale: Tensor, dtype: torch.dtype) -> CastTranspose:
    """FP8 cast with a given scale, in both orientations from one read of x.

    Returns ``q`` (shape of x), ``scale_inv`` (), ``q_t`` (C, ceil16(R)), ``amax`` (). x needs at least one dim.
    """
    check("cast_transpose", dtype, x=x, scale=scale)
    return CastTranspose(*_ops.cast_transpose(x, scale, dtype))


def cast_transpose_dbias(x: Tensor, scale: Tensor, dtype: torch.dtype) -> CastTransposeDbias:
    """``cast_transpose`` that also sums the columns of x.

    Returns ``q``, ``scale_inv``, ``q_t``, ``dbias`` (C,) FP32, ``amax``. ``dbias`` is the sum over R of the unscaled x,
    accumulated in FP32 in an order that depends on the shape alone: the same bits from run to run, on every CUDA
    device.
    """
    check("cast_transpose_dbias", dtype, x=x, scale=scale)
    return CastTransposeDbias(*_ops.cast_transpose_dbias(x, scale, dtype))


def quantize(x: Tensor, dtype: torch.dtype, *, pow2: bool = False, margin: int = 0) -> Quantized:
    """FP8 cast with current scaling: the scale comes from the amax of x itself.

    ``scale = max(dtype) / amax`` (one FP32 division) times ``2**-margin``, clamped to [2^-126, 2^126], rounded down to
    a power of two with ``pow2``; 1 where amax is 0, Inf or NaN. ``margin`` (-64 to 64) leaves headroom.
    Returns ``q`` (shape of x) and ``scale_inv`` ().
    """
    check("quantize", dtype, x=x)
    check_scaling("quantize", pow2, margin)
    return Quantized(*_ops.quantize(x, dtype, pow2, margin))


def quantize_transpose(x: Tensor, dtype: torch.dtype, *, pow2: bool = False, margin: int = 0) -> QuantizedTranspose:
    """``quantize`` in both orientations: what a weight or an activation in training needs.

    Returns ``q`` (shape of x), ``scale_inv`` (), ``q_t`` (C, ceil16(R)), ``scale_inv_t`` () which belongs to ``q_t``
    (equal to ``scale_inv`` for one scale per tensor). x needs at least one dim.
    """
    check("quantize_transpose", dtype, x=x)
    check_scaling("quantize_transpose", pow2, margin)
    return QuantizedTranspose(*_ops.quantize_transpose(x, dtype, pow2, margin))


def quantize_transpose_dbias(
    x: Tensor, dtype: torch.dtype, *, pow2: bool = False, margin: int = 0
) -> QuantizedTransposeDbias:
    """``quantize_transpose`` that also sums the columns of x: what the gradient of a linear layer with bias needs.

    Returns ``q``, ``scale_inv``, ``q_t``, ``scale_inv_t``, ``dbias`` (C,) FP32 as in ``cast_transpose_dbias``.
    """
    check("quantize_transpose_dbias", dtype, x=x)
    check_scaling("quantize_transpose_dbias", pow2, margin)
    return QuantizedTransposeDbias(*_ops.quantize_transpose_dbias(x, dtype, pow2, margin))


def multi_quantize_transpose(
    xs: list[Tensor] | tuple[Tensor, ...], dtype: torch.dtype, *, pow2: bool = False, margin: int = 0
) -> list[QuantizedTranspose]:
    """``quantize_transpose`` of each tensor of a list: all weights of a model in one call.

    Each tensor gets a scale of its own. Shapes and dtypes may differ; each tensor needs at least one dim, and all lie
    on one device. Returns one ``QuantizedTranspose`` per tensor, in order; an empty list gives an empty list.
    """
    check_list("multi_quantize_transpose", "xs", xs)
    check("multi_quantize_transpose", dtype, **{f"xs[{i}]": x for i, x in enumerate(xs)})
    check_scaling("multi_quantize_transpose", pow2, margin)
    return [QuantizedTranspose(*one) for one in zip(*_ops.multi_quantize_transpose(xs, dtype, pow2, margin))]


def dequantize(q: Tensor, scale_inv: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """``float(q) * scale_inv`` in FP32, rounded once to ``dtype`` (FP32, BF16 or FP16); shape of q, contiguous."""
    check("dequantize", dtype, q=q, scale_inv=scale_inv)
    return _ops.dequantize(q, scale_inv, dtype)


def transpose(q: Tensor) -> Tensor:
    """FP8 (R, C) -> (C, ceil16(R)), the padding zero: the ``q_t`` of data that is in FP8 already.

    q needs at least one dim.
    """
    check("transpose", q=q)
    return _ops.transpose(q)


def gemm(
    a: Tensor,
    b: Tensor,
    a_scale_inv: Tensor,
    b_scale_inv: Tensor,
    *,
    bias: Tensor | None = None,
    epilogue: str | None = None,
    aux: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    out: Tensor | None = None,
    accumulate: bool = False,
    fast_accum: bool = False,
) -> Tensor:
    """``y = epilogue((a · b^T * a_scale_inv) * b_scale_inv + bias)``, accumulated in FP32.

    - ``a`` FP8 (..., K), ``b`` FP8 (N, K), not both e5m2. One of them may be a ``q_t``, which has K rounded up to a
      multiple of 16: columns beyond K are ignored. Returns ``y`` (..., N) in ``out_dtype`` (FP32, BF16 or FP16), or
      ``out``.
    - ``bias`` (N,) is rounded to what FP8 tensor cores add: FP16 beside FP16 outputs, BF16 beside all others.
    - ``epilogue``: ``None``, ``"relu"``, ``"gelu_tanh"`` or ``"dgelu"``, which multiplies the result by the derivative of
      ``gelu_tanh`` at ``aux``. ``aux`` has the shape of y and is FP32, BF16 or FP16. ``dgelu`` needs it, of any strides.
      With ``gelu_tanh`` it may be given, laid out as ``out``: gelu's argument is written there. No other takes one.
    - ``out`` (..., N), FP32, BF16 or FP16 with a contiguous last dim and one row stride: written in place and returned;
      its dtype replaces ``out_dtype``. With ``accumulate`` (FP32 or BF16, no activation) y is added to it.
    - ``fast_accum`` lets tensor cores keep fewer accumulator bits; the CPU always accumulates in full FP32.
    - ``a_scale_inv`` and ``b_scale_inv`` are FP32 and hold one element, or one for each row of the operand, (M, 1) and
      (N, 1), or for each of its 1x128 or 128x128 blocks, (M, ceil(K/128)), (ceil(N/128), ceil(K/128)) (not 128x128 for
      both), or are E8M0 (``float8_e8m0fnu``, or uint8) for each 1x32 block, (M, ceil(K/32)) and (N, ceil(K/32)). M
      counts all rows of a. Any strides. Either both hold one element or one per row, in any mix, or both 1x32, or one
      1x128 and the other 1x128 or 128x128. So on the CPU; GPUs do as in README.md, "GEMMs on a GPU".

    A NaN in either operand or scale reaches y, with row and block scales only the rows or columns it belongs to; K = 0
    gives zeros (plus bias). Scales of tensors and rows are applied one after the other to the sum: where ``acc *
    a_scale_inv`` alone leaves FP32's range (amax of a beyond some 1e33), so does y. Scales of blocks may multiply each
    code first: where ``code * scale_inv`` leaves the range, y is Inf or NaN.

    Raises ValueError where K or scales do not fit, for another pair of scales or one that the GPU lacks, for an ``out``
    or ``aux`` that overlaps itself, has another layout or shares memory with an input, for ``accumulate`` without
    ``out``.
    """
    a_scale_inv, b_scale_inv = e8m0_bytes(a_scale_inv), e8m0_bytes(b_scale_inv)
    check("gemm", out_dtype, a=a, b=b, a_scale_inv=a_scale_inv, b_scale_inv=b_scale_inv, bias=bias, aux=aux, out=out)
    name = "none" if epilogue is None else epilogue
    check_types(
        "gemm", epilogue=(name, str), accumulate=(accumulate, bool), fast_accum=(fast_accum, bool)
    )
    saves = name == "gelu_tanh" and aux is not None
    if out is None and not saves and not accumulate:
        return _ops.gemm(a, b, a_scale_inv, b_scale_inv, bias, name, aux, out_dtype, fast_accum)
    if out is None:
        if accumulate:
            raise ValueError("transcast.gemm: accumulate needs out, the tensor to add to")
        if a.dim() == 0 or b.dim() != 2:
            raise ValueError(f"transcast.gemm: b must be [N, K], a [..., K], got {tuple(b.shape)}, {tuple(a.shape)}")
        out = a.new_empty((*a.shape[:-1], b.shape[0]), dtype=out_dtype)
    read, saved = (None, aux) if saves else (aux, None)
    _ops.gemm_out(a, b, a_scale_inv, b_scale_inv, bias, name, read, fast_accum, accumulate, out, saved)
    written(out, saved)
    return out


def gemm_fp8(
    a: Tensor,
    b: Tensor,
    a_scale_inv: Tensor,
    b_scale_inv: Tensor,
    *,
    out_scale: Tensor,
    dtype: torch.dtype = E4M3,
    bias: Tensor | None = None,
    epilogue: str | None = None,
    aux: Tensor | None = None,
    fast_accum: bool = False,
) -> GemmFp8:
    """``gemm`` whose result is cast to FP8 with a given scale, without a pass in between.

    ``q = fp8(y * out_scale)`` (..., N) in ``dtype``, ``scale_inv`` () = ``1 / out_scale`` (NaN if y is not finite
    everywhere), ``amax`` () of y before scaling. ``epilogue`` is ``None``, ``"relu"`` or ``"gelu_tanh"``; ``aux``
    (..., N) then takes gelu's argument. A bias is rounded to BF16, or stays FP16 if it is FP16. A finite y beyond the
    format's max saturates: ``amax * out_scale`` shows it. Raises as ``gemm``.
    """
    a_scale_inv, b_scale_inv = e8m0_bytes(a_scale_inv), e8m0_bytes(b_scale_inv)
    check(
        "gemm_fp8",
        dtype,
        a=a,
        b=b,
        a_scale_inv=a_scale_inv,
        b_scale_inv=b_scale_inv,
        out_scale=out_scale,
        bias=bias,
        aux=aux,
    )
    name = "none" if epilogue is None else epilogue
    check_types("gemm_fp8", epilogue=(name, str), fast_accum=(fast_accum, bool))
    result = _ops.gemm_fp8(a, b, a_scale_inv, b_scale_inv, out_scale, bias, name, dtype, fast_accum, aux)
    written(aux)
    return GemmFp8(*result)
