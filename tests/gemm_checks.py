"""What the tests of gemm, gemm_out and gemm_fp8 share: operands, and the comparison with the FP64 product."""

from __future__ import annotations

import threading

import pytest
import torch

from bounds import HARDWARE_DGELU_ERROR, HARDWARE_GELU_ERROR
from cases import DTYPES, E4M3, E5M2, GEMM_SHAPES, fp8, fp8_integers, gemm_bound, scalar, shape_id
from conftest import assert_same_bytes, assert_within, moved
from transcast import reference

PAIRS = [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)]
pairs = pytest.mark.parametrize("pair", PAIRS, ids=["e4m3-e4m3", "e5m2-e4m3", "e4m3-e5m2"])
outputs = pytest.mark.parametrize("out_dtype", DTYPES.values(), ids=DTYPES)
shapes = pytest.mark.parametrize("shape", GEMM_SHAPES, ids=shape_id)
# For operands whose sums are exact. K short and long, sides that a GPU's library multiplies as they are and
# others.
EXACT_SHAPES = [(17, 24, 712), (33, 70, 96), (64, 64, 64), (16, 32, 2080)]
exact_shapes = pytest.mark.parametrize("shape", EXACT_SHAPES, ids=shape_id)
SCALE_A, SCALE_B = 2.0**-9 * 1.3, 2.0**-4 * 1.1  # products stay within FP16


def operands(shape: tuple[int, int, int], pair=(E4M3, E4M3), make=fp8) -> list[torch.Tensor]:
    """a, b, a_scale_inv, b_scale_inv. Random e5m2 codes reach 57344: its share of the scale is smaller."""
    m, n, k = shape
    scales = [s * (2.0**-8 if fmt == E5M2 else 1) for s, fmt in zip((SCALE_A, SCALE_B), pair)]
    if make is fp8_integers:
        scales = [2.0**-3, 2.0]
    return [make((m, k), pair[0], 1), make((n, k), pair[1], 2), scalar(scales[0]), scalar(scales[1])]


def arithmetic_on(device: torch.device, fast_accum: bool = False) -> str:
    """What sums up the products of FP8 there: see ``bounds.accumulation_error``."""
    return "fp32" if device.type != "cuda" else "fast_accum" if fast_accum else "tensor_core"


def right_in_threads(multiply) -> list[bool]:
    """Whether each of 30 products in each of four threads is that of the thread's own operands.

    ``multiply`` gets a, b, a_scale_inv, b_scale_inv: alike in all but their values; sums are exact.
    """
    right = []

    def work(seed: int) -> None:
        a, b = fp8_integers((64, 256), E4M3, seed), fp8_integers((128, 256), E4M3, seed + 100)
        args = [a, b, scalar(2.0**-seed), scalar(2.0)]
        want = reference.gemm(*args, None, "none", None, torch.float32, False)
        for _ in range(30):
            right.append(torch.equal(multiply(args), want))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return right


def arithmetic_of(backend, fast_accum=False) -> str:
    return arithmetic_on(backend.device, fast_accum)


def bound_of(backend, args, bias, epilogue, y, pre, out_dtype, added_to=None, fast_accum=False, exact=False):
    """``gemm_bound`` on the backend. ``exact``: the products of ``args`` add up without an error anywhere.

    A tensor core's bound grows with K until it holds hardly anything wrong; exact sums are held to that of
    FP32, plus what a GPU's own tanh is off by.
    """
    arithmetic = "fp32" if exact else arithmetic_of(backend, fast_accum)
    bound, pre_bound = gemm_bound(*args, bias, epilogue, y, pre, out_dtype, added_to, arithmetic)
    tanh_error = {"gelu_tanh": HARDWARE_GELU_ERROR, "dgelu": HARDWARE_DGELU_ERROR}.get(epilogue, 0.0)
    if exact and backend.device.type == "cuda":
        bound = bound + 1.01 * tanh_error * pre.abs()  # 1%: of it, too, what rounds to the output
    return bound, pre_bound


def check_gemm(
    backend,
    args,
    bias=None,
    epilogue="none",
    aux=None,
    out_dtype=torch.float32,
    fast_accum=False,
    exact=False,
):
    got = backend.run("gemm", *args, bias, epilogue, aux, out_dtype, fast_accum)
    y, pre = reference.gemm_fp64(*args, bias, epilogue, aux, out_dtype)
    bound, _ = bound_of(backend, args, bias, epilogue, y, pre, out_dtype, None, fast_accum, exact)
    assert got.dtype == out_dtype and got.is_contiguous()
    assert_within(got, y, bound, f"gemm {epilogue}")
    return got


def check_gemm_out(
    backend, args, out, bias=None, epilogue="none", aux=None, accumulate=False, aux_out=None, exact=False
):
    y, pre = reference.gemm_fp64(*args, bias, epilogue, aux, out.dtype)
    added_to = out.clone() if accumulate else None
    if accumulate:
        y = y + added_to.to(torch.float64)
    bound, pre_bound = bound_of(backend, args, bias, epilogue, y, pre, out.dtype, added_to, exact=exact)
    out, aux_out = moved((out, aux_out), backend.device)
    *operands, bias, aux = moved((*args, bias, aux), backend.device)
    backend.ops.gemm_out(*operands, bias, epilogue, aux, False, accumulate, out, aux_out)
    assert_within(out.cpu(), y, bound, f"gemm_out {epilogue}")
    if aux_out is not None:
        assert_within(aux_out.cpu(), pre.reshape(aux_out.shape), pre_bound.reshape(aux_out.shape), "aux_out")


def gemm_bound_of(backend, args):
    y, pre = reference.gemm_fp64(*args, None, "none", None, torch.float32)
    return gemm_bound(*args, None, "none", y, pre, torch.float32, arithmetic=arithmetic_of(backend))[0]


def check_gemm_fp8(backend, args, out_scale, bias, epilogue, dtype, aux_out=None, exact=False):
    """Codes lie between the casts of both ends of the interval that the bound allows."""
    aux_out = moved(aux_out, backend.device)  # written there
    results = backend.run("gemm_fp8", *args, out_scale, bias, epilogue, dtype, False, aux_out)
    y, pre = reference.gemm_fp64(*args, bias, epilogue, None, dtype)
    bound, _ = bound_of(backend, args, bias, epilogue, y, pre, dtype, exact=exact)
    q, scale_inv, amax = results
    low, high = (reference.cast((y + d).to(torch.float32), out_scale, dtype)[0] for d in (-bound, bound))
    decoded, low, high = (t.to(torch.float32) for t in (q, low, high))
    low, high = torch.minimum(low, high), torch.maximum(low, high)
    bad = ~((low <= decoded) & (decoded <= high))
    assert not bad.any(), f"{int(bad.sum())} of {bad.numel()} codes, first at {bad.nonzero()[0].tolist()}"
    assert_within(amax, y.abs().max(), bound.max(), "amax")
    assert_same_bytes(scale_inv, reference.scale_inv_of(out_scale, amax), "scale_inv")
    if aux_out is not None:
        _, pre_bound = bound_of(backend, args, bias, epilogue, y, pre, aux_out.dtype, exact=exact)
        assert_within(aux_out.cpu(), pre, pre_bound, "aux_out")
    return results
