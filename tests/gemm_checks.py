"""What the tests of gemm, gemm_out and gemm_fp8 share: operands, and the comparison with the FP64 product."""

from __future__ import annotations

import pytest
import torch

from cases import DTYPES, E4M3, E5M2, GEMM_SHAPES, fp8, fp8_integers, gemm_bound, scalar, shape_id
from conftest import assert_same_bytes, assert_within
from transcast import reference

PAIRS = [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)]
pairs = pytest.mark.parametrize("pair", PAIRS, ids=["e4m3-e4m3", "e5m2-e4m3", "e4m3-e5m2"])
outputs = pytest.mark.parametrize("out_dtype", DTYPES.values(), ids=DTYPES)
shapes = pytest.mark.parametrize("shape", GEMM_SHAPES, ids=shape_id)
SCALE_A, SCALE_B = 2.0**-9 * 1.3, 2.0**-4 * 1.1  # products stay within FP16


def operands(shape: tuple[int, int, int], pair=(E4M3, E4M3), make=fp8) -> list[torch.Tensor]:
    """a, b, a_scale_inv, b_scale_inv. Random e5m2 codes reach 57344: its share of the scale is smaller."""
    m, n, k = shape
    scales = [s * (2.0**-8 if fmt == E5M2 else 1) for s, fmt in zip((SCALE_A, SCALE_B), pair)]
    if make is fp8_integers:
        scales = [2.0**-3, 2.0]
    return [make((m, k), pair[0], 1), make((n, k), pair[1], 2), scalar(scales[0]), scalar(scales[1])]


def arithmetic_of(backend, fast_accum=False) -> str:
    """What sums up the products: see ``bounds.accumulation_error``."""
    return "fp32" if backend.name != "cuda" else "fast_accum" if fast_accum else "tensor_core"


def check_gemm(
    backend, args, bias=None, epilogue="none", aux=None, out_dtype=torch.float32, fast_accum=False
):
    got = backend.run("gemm", *args, bias, epilogue, aux, out_dtype, fast_accum)
    y, pre = reference.gemm_fp64(*args, bias, epilogue, aux, out_dtype)
    arithmetic = arithmetic_of(backend, fast_accum)
    bound, _ = gemm_bound(*args, bias, epilogue, y, pre, out_dtype, arithmetic=arithmetic)
    assert got.dtype == out_dtype and got.is_contiguous()
    assert_within(got, y, bound, f"gemm {epilogue}")
    return got


def check_gemm_out(backend, args, out, bias=None, epilogue="none", aux=None, accumulate=False, aux_out=None):
    y, pre = reference.gemm_fp64(*args, bias, epilogue, aux, out.dtype)
    added_to = out.clone() if accumulate else None
    if accumulate:
        y = y + added_to.to(torch.float64)
    bound, pre_bound = gemm_bound(*args, bias, epilogue, y, pre, out.dtype, added_to, arithmetic_of(backend))
    moved = [None if t is None else t.to(backend.device) for t in (out, aux_out)]
    moved_args = [None if t is None else t.to(backend.device) for t in (*args, bias, aux)]
    backend.ops.gemm_out(*moved_args[:5], epilogue, moved_args[5], False, accumulate, *moved)
    assert_within(moved[0].cpu(), y, bound, f"gemm_out {epilogue}")
    if aux_out is not None:
        assert_within(moved[1].cpu(), pre.reshape(aux_out.shape), pre_bound.reshape(aux_out.shape), "aux_out")


def gemm_bound_of(backend, args):
    y, pre = reference.gemm_fp64(*args, None, "none", None, torch.float32)
    return gemm_bound(*args, None, "none", y, pre, torch.float32, arithmetic=arithmetic_of(backend))[0]


def check_gemm_fp8(backend, args, out_scale, bias, epilogue, dtype, aux_out=None):
    """Codes lie between the casts of both ends of the interval that the bound allows."""
    results = backend.run("gemm_fp8", *args, out_scale, bias, epilogue, dtype, False, aux_out)
    y, pre = reference.gemm_fp64(*args, bias, epilogue, None, dtype)
    arithmetic = arithmetic_of(backend)
    bound, _ = gemm_bound(*args, bias, epilogue, y, pre, dtype, arithmetic=arithmetic)
    q, scale_inv, amax = results
    low, high = (reference.cast((y + d).to(torch.float32), out_scale, dtype)[0] for d in (-bound, bound))
    decoded, low, high = (t.to(torch.float32) for t in (q, low, high))
    low, high = torch.minimum(low, high), torch.maximum(low, high)
    bad = ~((low <= decoded) & (decoded <= high))
    assert not bad.any(), f"{int(bad.sum())} of {bad.numel()} codes, first at {bad.nonzero()[0].tolist()}"
    assert_within(amax, y.abs().max(), bound.max(), "amax")
    assert_same_bytes(scale_inv, reference.scale_inv_of(out_scale, amax), "scale_inv")
    if aux_out is not None:
        _, pre_bound = gemm_bound(*args, bias, epilogue, y, pre, aux_out.dtype, arithmetic=arithmetic)
        assert_within(aux_out, pre, pre_bound, "aux_out")
    return results
