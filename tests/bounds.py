"""Derived error bounds of what is summed in FP32. Part of the table in cases.py."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from transcast.reference import operands_fp64

U32 = 2.0**-24  # unit roundoff of FP32
ETA = 2.0**-149  # bounds the error of one operation whose result is subnormal
# The tanh of a GEMM's own epilogue on a GPU is off by up to 2^-11 (CUDA C++ Programming Guide, tanh.approx.f32).
# gelu_tanh' multiplies its square by at most 8.7 where it is not 1 yet.
HARDWARE_GELU_ERROR, HARDWARE_DGELU_ERROR = 2.0**-11, 9.2 * 2.0**-10
GELU_LIPSCHITZ = 1.13  # largest slope of gelu_tanh
GELU_ERROR = 8 * U32
DGELU_ERROR = 128 * U32


INSTRUCTION_K, PROMOTION = 32, 4  # products that one tensor core instruction adds; instructions between FP32 sums
ALIGNED = (INSTRUCTION_K + 1) * 2.0**-13  # products and accumulator, each cut off below 2^-13 of the largest


def gamma(n: int) -> float:
    """n u / (1 - n u): what n roundings in a row can do (Higham, Accuracy and Stability, 3.1)."""
    return n * U32 / (1 - n * U32)


def accumulation_error(k: int, arithmetic: str = "fp32") -> float:
    """Largest relative error of a sum of K products: of the sum of their magnitudes, without other roundings.

    ``fp32``: every addition rounds to FP32. ``tensor_core``: an instruction aligns 32 products and the
    accumulator to the largest of them and keeps 13 bits behind its leading one, as measured on Hopper
    ("DeepSeek-V3 Technical Report", 2024, section 3.3.2); 4 instructions later the accumulator is added to
    one in FP32. ``fast_accum``: it never is. Not yet measured on hardware by us: newer tensor cores keep more.
    """
    instructions = math.ceil(k / INSTRUCTION_K)
    inexact = {"fp32": 0, "tensor_core": min(PROMOTION, instructions), "fast_accum": instructions}[arithmetic]
    return gamma(k) + ((1 + ALIGNED) ** inexact - 1)


def magnitude_of_sums(a: Tensor, b: Tensor, a_scale_inv: Tensor, b_scale_inv: Tensor) -> Tensor:
    """sum_k |a_mk| |b_nk| * |sA sB| in FP64, [..., N]: what relative errors of the products add up to."""
    a64, b64 = operands_fp64(a, b, a_scale_inv, b_scale_inv)
    return torch.matmul(a64.abs(), b64.abs().t()).reshape(*a.shape[:-1], b.shape[0])


def gemm_bound(
    a: Tensor,
    b: Tensor,
    a_scale_inv: Tensor,
    b_scale_inv: Tensor,
    bias: Tensor | None,
    epilogue: str,
    y: Tensor,
    pre: Tensor,
    out_dtype: torch.dtype,
    added_to: Tensor | None = None,
    arithmetic: str = "fp32",
) -> tuple[Tensor, Tensor]:
    """Largest |computed - exact| of a GEMM's output and of its pre-activation, both FP64 [..., N].

    ``y`` and ``pre`` are the exact results of ``reference.gemm_fp64``, ``added_to`` is what accumulate has added to
    ``y``.

    Derivation, u = 2**-24. Products of two FP8 values have at most 8 significant bits: exact in FP32. Each
    meets at most K - 1 additions, whatever the order of summation, two scalings, and the additions of
    ``added_to`` and of the bias: K + 3 roundings at most, thus with the error of ``arithmetic`` (see
    ``accumulation_error``; below for ``fp32``)

        e = gamma(K + 3) (sum |a||b| |sA sB| + |added_to| + |bias|) + 2 eta (1 + |sB|)

    where eta covers subnormal results of the scalings, the first of which is multiplied by sB afterwards.
    Scales of blocks multiply the codes or the sums of their block: three roundings more of each product, none
    of them subnormal in the tests.

    relu does not enlarge e. gelu_tanh has slope at most 1.13; evaluating it in FP32 adds 8 u |pre|: the
    sigmoid (or tanh) of z has the error of z (4 u |z|, damped by its slope: |z| s (1 - s) < 0.23), that of
    exp and of the division, below 7 u in all, and one rounding of the product. dgelu multiplies by
    g = gelu'(aux), |g| <= 1.13, whose error is below 128 u: the factor 1 - t^2 has an error of 9 u and is
    multiplied by at most 9.6 before t reaches 1 (|aux| < 5.2), the first summand adds 5 u.

    Last, the rounding to the output: u_out (|y| + e) and half its smallest subnormal. A stored pre-activation
    has an error of e and the same rounding. FP8 outputs are held to FP32's bound before their cast.
    """
    k = min(a.shape[-1], b.shape[-1])
    summands = magnitude_of_sums(a, b, a_scale_inv, b_scale_inv)
    if bias is not None:
        summands = summands + bias.to(torch.float64).abs() * (1 + 2.0**-8)  # it may be rounded up to BF16
    if added_to is not None:
        summands = summands + added_to.to(torch.float64).abs()
    largest = float(b_scale_inv.abs().max()) if b_scale_inv.is_floating_point() and b_scale_inv.numel() else 0.0
    others = 6 if _is_blockwise(b_scale_inv) else 3
    error = accumulation_error(k + others, arithmetic) * summands + 2 * ETA * (1 + largest)
    pre_bound = _rounded(error, pre, out_dtype)
    exact_tanh = arithmetic == "fp32"
    if epilogue == "gelu_tanh":
        error = GELU_LIPSCHITZ * error + (GELU_ERROR if exact_tanh else HARDWARE_GELU_ERROR) * pre.abs()
    elif epilogue == "dgelu":
        error = GELU_LIPSCHITZ * error + (DGELU_ERROR if exact_tanh else HARDWARE_DGELU_ERROR) * pre.abs()
    return _rounded(error, y, out_dtype), pre_bound


def _is_blockwise(scale_inv: Tensor) -> bool:
    return scale_inv.dtype == torch.uint8 or (scale_inv.dim() == 2 and scale_inv.shape[1] > 1)


def _rounded(error: Tensor, exact: Tensor, out_dtype: torch.dtype) -> Tensor:
    info = torch.finfo(torch.float32 if out_dtype.itemsize == 1 else out_dtype)
    return error + info.eps / 2 * (exact.abs() + error) + info.smallest_normal * info.eps / 2


# Largest |computed - exact| of FP32 activations, as (times |exact|, times |x|, absolute). Derivation, in units
# of u. exp: the reduced argument r is within 1/2 of exact, the last product and sum of the polynomial round once
# each (those before count by r / 2 and less), the series' remainder is 1/8: below 4. sigmoid: exp's 4, an
# addition, a division: 6. Where exp(-x) overflows, sigmoid and silu are 0 instead of less than 2^-121. silu: one
# product more. gelu_tanh: the error of exp's argument z is 4 |z| and moves sigmoid by its slope,
# |z| s (1 - s) < 0.23: 8 |x| in all. dsilu: 1 - s has the error of s, at most 1.5 where it counts, times
# |x| < 17.4, beyond which s is 1; the other roundings add less than 5. dgelu_tanh: as dgelu in gemm_bound.
ACT_BOUNDS = {
    "exp": (4 * U32, 0.0, 2.0**-149),
    "sigmoid": (6 * U32, 0.0, 2.0**-121),
    "silu": (7 * U32, 0.0, 2.0**-121),
    "gelu_tanh": (0.0, GELU_ERROR, 2.0**-121),
    "dsilu": (0.0, 0.0, 32 * U32),
    "dgelu_tanh": (0.0, 0.0, DGELU_ERROR),
}


def sum_bound(x: Tensor) -> Tensor:
    """Largest |computed - exact| of a matrix's FP32 column sums: R - 1 additions in any order."""
    total = x.to(torch.float64).abs().sum(dim=0)
    bound = gamma(max(0, x.shape[0] - 1)) * total
    return torch.where(total > torch.finfo(torch.float32).max, math.inf, bound)  # a partial sum may overflow
