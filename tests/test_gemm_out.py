"""gemm_out: into given memory, with accumulation and the saved pre-activation."""

from __future__ import annotations

import math

import pytest
import torch

from cases import E4M3, EMPTY_GEMM_SHAPES, LARGE_GEMM_SHAPES, fp8_integers, normal, shape_id
from conftest import assert_same_bytes, assert_within, moved
from gemm_checks import bound_of, check_gemm_out, exact_shapes, operands, outputs, pairs, shapes
from transcast import reference


@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
@outputs
@shapes
def test_bound_aux_out(backend, shape, out_dtype, with_bias):
    """A GPU's library rounds before it adds this bias: only without one does it do the whole product."""
    m, n, _ = shape
    aux_out = torch.full((m, n), math.nan, dtype=out_dtype)
    out, bias = torch.empty(m, n, dtype=out_dtype), normal((n,), out_dtype) if with_bias else None
    check_gemm_out(backend, operands(shape), out, bias, "gelu_tanh", aux_out=aux_out)


@outputs
@exact_shapes
def test_bound_aux_out_of_exact_sums(backend, shape, out_dtype):
    m, n, _ = shape
    args, bias = operands(shape, make=fp8_integers), torch.arange(n).remainder(5).to(out_dtype)
    for b in (None, bias):
        out, aux_out = (torch.full((m, n), math.nan, dtype=out_dtype) for _ in range(2))
        check_gemm_out(backend, args, out, b, "gelu_tanh", aux_out=aux_out, exact=True)


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
@exact_shapes
def test_bound_accumulate_exact_sums(backend, shape, out_dtype):
    m, n, _ = shape
    args, bias = operands(shape, make=fp8_integers), torch.arange(n).remainder(5).to(out_dtype)
    for b in (None, bias):
        check_gemm_out(backend, args, normal((m, n), out_dtype), b, accumulate=True, exact=True)


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
@shapes
def test_bound_accumulate(backend, shape, out_dtype):
    m, n, _ = shape
    check_gemm_out(backend, operands(shape), normal((m, n), out_dtype), accumulate=True)
    check_gemm_out(
        backend, operands(shape), normal((m, n), out_dtype), normal((n,), out_dtype), accumulate=True
    )


@outputs
def test_S4_out_and_aux_out_may_be_slices_of_wider_matrices(backend, out_dtype):
    for m in (3, 20):
        wide = torch.full((m, 64), 7.0, dtype=out_dtype, device=backend.device)
        wide_aux = torch.full((m, 80), 9.0, dtype=out_dtype, device=backend.device)
        out, aux_out = wide[:, 8:41], wide_aux[:, 16:49]
        args = operands((m, 33, 50))
        y, pre = reference.gemm_fp64(*args, None, "gelu_tanh", None, out_dtype)
        bound, pre_bound = bound_of(backend, args, None, "gelu_tanh", y, pre, out_dtype)
        args = moved(args, backend.device)
        backend.ops.gemm_out(*args, None, "gelu_tanh", None, False, False, out, aux_out)
        assert_within(out.cpu(), y, bound, "out")
        assert_within(aux_out.cpu(), pre, pre_bound, "aux_out")
        assert (wide[:, :8] == 7).all() and (wide[:, 41:] == 7).all()
        assert (wide_aux[:, :16] == 9).all() and (wide_aux[:, 49:] == 9).all()


@pairs
@pytest.mark.parametrize("shape", LARGE_GEMM_SHAPES, ids=shape_id)
def test_bound_accumulate_large(backend, shape, pair):
    check_gemm_out(backend, operands(shape, pair), normal(shape[:2], torch.float32), accumulate=True)


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", EMPTY_GEMM_SHAPES, ids=shape_id)
def test_S2_nothing_is_added_by_an_empty_product(backend, shape, out_dtype):
    out = moved(normal(shape[:2], out_dtype), backend.device)
    before = out.clone()
    args = moved(operands(shape), backend.device)
    backend.ops.gemm_out(*args, None, "none", None, False, True, out, None)
    assert_same_bytes(out, before, "out")


@pytest.mark.parametrize("m", [3, 20])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("epilogue", ["dgelu", "gelu_tanh"])
def test_out_that_is_also_aux_is_right_or_refused(backend, m, out_dtype, epilogue):
    """dgelu in place would be a natural wish; silently wrong numbers are not an answer."""
    args = operands((m, 33, 50))
    before = torch.linspace(-3, 3, m * 33).view(m, 33).to(out_dtype)
    out = before.to(backend.device, copy=True)
    read, written = (out, None) if epilogue == "dgelu" else (None, out)
    y, pre = reference.gemm_fp64(*args, None, epilogue, before, out_dtype)
    bound, _ = bound_of(backend, args, None, epilogue, y, pre, out_dtype)
    args = moved(args, backend.device)
    try:
        backend.ops.gemm_out(*args, None, epilogue, read, False, False, out, written)
    except ValueError as error:
        assert "share memory" in str(error)
        assert_same_bytes(out.cpu(), before, "out after a refusal")
    else:
        assert epilogue == "dgelu", "one tensor cannot hold both gelu and its argument"
        assert_within(out.cpu(), y, bound, "dgelu in place")


@pytest.mark.parametrize("what", ["a_scale_inv", "b_scale_inv", "bias"])
@pytest.mark.parametrize("where", ["out", "aux_out"])
def test_what_is_read_and_lies_in_what_is_written_is_refused(backend, what, where):
    """Blocks of a product read their inputs when others have written their part of the output."""
    a, b = (torch.ones(rows, 16, device=backend.device).to(E4M3) for rows in (8, 5))
    one = torch.ones((), device=backend.device)
    dtype = torch.bfloat16 if what == "bias" else torch.float32
    memory = torch.zeros(8, 12, dtype=dtype, device=backend.device)
    written = {name: torch.zeros(8, 5, dtype=dtype, device=backend.device) for name in ("out", "aux_out")}
    written[where] = memory[:, :5]

    def run(column):
        read = {"a_scale_inv": one, "b_scale_inv": one, "bias": None}
        read[what] = memory[3, column : column + 5] if what == "bias" else memory[3, column]
        backend.ops.gemm_out(
            a, b, read["a_scale_inv"], read["b_scale_inv"], read["bias"], "gelu_tanh", None, False, False,
            written["out"], written["aux_out"],
        )  # fmt: skip

    with pytest.raises(ValueError, match=f"{where} must not share memory with {what}"):
        run(4)
    assert not memory.any()
    run(5)  # beside it in the same matrix
    assert not memory[:, 5:].any()


def test_out_and_aux_side_by_side_in_one_matrix(backend):
    a, b = (fp8_integers((rows, 16), E4M3, seed=rows).to(backend.device) for rows in (8, 5))
    one = torch.ones((), device=backend.device)
    both = torch.zeros(8, 12, device=backend.device)
    backend.ops.gemm_out(a, b, one, one, None, "gelu_tanh", None, False, False, both[:, :5], both[:, 5:10])
    out, aux = torch.zeros(8, 5, device=backend.device), torch.zeros(8, 5, device=backend.device)
    backend.ops.gemm_out(a, b, one, one, None, "gelu_tanh", None, False, False, out, aux)
    assert torch.equal(both, torch.cat((out, aux, torch.zeros_like(out[:, :2])), dim=1))
    with pytest.raises(ValueError, match="out must not share memory with aux"):
        backend.ops.gemm_out(a, b, one, one, None, "gelu_tanh", None, False, False, both[:, :5], both[:, 4:9])
