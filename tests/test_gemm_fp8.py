"""gemm_fp8: the product in FP8, with its amax and inverse scale."""

from __future__ import annotations

import math

import pytest
import torch

from cases import DTYPES, E4M3, E5M2, EMPTY_GEMM_SHAPES, FORMATS, fp8_integers, normal, scalar, shape_id
from conftest import assert_same_bytes
from gemm_checks import check_gemm_fp8, exact_shapes, operands, pairs, shapes
from transcast import reference


@pairs
@pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("epilogue", ["none", "relu", "gelu_tanh"])
@shapes
def test_bound_fp8_output(backend, shape, epilogue, dtype, pair):
    args = operands(shape, pair)
    bias = normal((shape[1],), torch.float32) if shape[0] % 2 else None
    check_gemm_fp8(backend, args, scalar(0.37), bias, epilogue, dtype)


@pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("epilogue", ["none", "relu", "gelu_tanh"])
@exact_shapes
def test_bound_fp8_output_of_exact_sums(backend, shape, epilogue, dtype):
    args, bias = operands(shape, make=fp8_integers), torch.arange(shape[1]).remainder(5).to(torch.bfloat16)
    for b in (None, bias):
        check_gemm_fp8(backend, args, scalar(0.37), b, epilogue, dtype, exact=True)


@pytest.mark.parametrize("bias_dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("aux_dtype", [torch.bfloat16, torch.float16])
def test_bound_fp8_output_with_bias_and_aux_out(backend, bias_dtype, aux_dtype):
    for m in (3, 20):
        aux_out = torch.empty(m, 33, dtype=aux_dtype)
        bias = torch.randn(33, generator=torch.Generator().manual_seed(0)).to(bias_dtype)
        check_gemm_fp8(backend, operands((m, 33, 50)), scalar(2.0), bias, "gelu_tanh", E5M2, aux_out)


@pytest.mark.parametrize("m", [2, 9])
def test_V8_out_scale_counts(backend, m):
    args = operands((m, 20, 30), make=fp8_integers)
    decoded = []
    for out_scale in (1.0, 0.5):
        q, scale_inv, _ = backend.run("gemm_fp8", *args, scalar(out_scale), None, "none", E4M3, False, None)
        decoded.append(q.to(torch.float32))
        assert_same_bytes(
            q, reference.gemm_fp8(*args, scalar(out_scale), None, "none", E4M3, False, None)[0], "q"
        )
        assert scale_inv.item() == 1 / out_scale
    assert not torch.equal(*decoded)


def test_V1_fp8_output_saturates(backend):
    a, b, one = torch.full((9, 16), 448.0).to(E4M3), torch.full((3, 16), -448.0).to(E4M3), scalar(1.0)
    q, scale_inv, amax = backend.run("gemm_fp8", a, b, one, one, one, None, "none", E4M3, False, None)
    assert (q.to(torch.float32) == -448).all() and amax.item() == 16 * 448.0**2 and scale_inv.item() == 1.0


@pytest.mark.parametrize("shape", EMPTY_GEMM_SHAPES, ids=shape_id)
def test_S2_empty(backend, shape):
    q, scale_inv, amax = backend.run(
        "gemm_fp8", *operands(shape), scalar(2.0), None, "none", E4M3, False, None
    )
    assert q.shape == shape[:2] and not q.view(torch.uint8).any()
    assert (scale_inv.item(), amax.item()) == (0.5, 0.0)


@pytest.mark.parametrize("shape", [(2, 30, 20), (9, 30, 20), (9, 32, 32)], ids=shape_id)
@pytest.mark.parametrize("epilogue", ["none", "relu"])
@pytest.mark.parametrize("code, amax_bits, codes", [(0x7F, 0x7FC00000, 0x7F), (0x7C, 0x7F800000, 0x7E)])
def test_V4_non_finite_operands_poison_scale_inv(backend, shape, epilogue, code, amax_bits, codes):
    """One NaN or Inf in e5m2 data: its row's codes are NaN or saturated, amax shows it, scale_inv is NaN."""
    m, n, k = shape
    a, b, one = fp8_integers((m, k), E5M2, 1), torch.ones(n, k).to(E4M3), scalar(1.0)
    a.view(torch.uint8)[1, 19] = code
    q, scale_inv, amax = backend.run("gemm_fp8", a, b, one, one, one, None, epilogue, E4M3, False, None)
    assert (q[1].view(torch.uint8) == codes).all() and torch.isfinite(q[0].to(torch.float32)).all()
    assert amax.view(torch.int32).item() == amax_bits
    assert scale_inv.view(torch.int32).item() == 0x7FC00000


@pytest.mark.parametrize("out_scale", [math.nan, 0.0, -1.5, 1e-40])
def test_any_out_scale(backend, out_scale):
    args = operands((9, 20, 30), make=fp8_integers)
    got = backend.run("gemm_fp8", *args, scalar(out_scale), None, "none", E5M2, False, None)
    want = reference.gemm_fp8(*args, scalar(out_scale), None, "none", E5M2, False, None)
    for name, g, w in zip(("q", "scale_inv", "amax"), got, want):
        assert_same_bytes(g, w, name)
