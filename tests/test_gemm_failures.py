"""A GEMM that cuBLASLt refuses or fails: the next algorithm, or an error with the whole descriptor."""

from __future__ import annotations

import pytest
import torch

from cases import fp8_integers
from conftest import assert_same_bytes
from gemm_checks import check_gemm, operands
from gemm_emu import EMU, OPS, SHAPE, UNUSED, calls_of, fresh, gemm  # noqa: F401
from transcast import reference

NOT_INITIALIZED, EXECUTION_FAILED, NOT_SUPPORTED = 1, 13, 15


@pytest.mark.parametrize("refused", [1, 2])
def test_the_next_algorithm_runs_where_one_is_refused(emu, refused):
    emu.configure_cublaslt(refuse_candidates=refused)
    args = operands(SHAPE, make=fp8_integers)
    want = reference.gemm(*args, None, "none", None, torch.bfloat16, False)
    for tries in (refused + 1, 1):  # what was refused is not tried again
        assert calls_of(emu, lambda: assert_same_bytes(gemm(args), want, "gemm"))["Matmul"] == tries
    assert emu.gemm_plans()[0]["chosen"] == refused
    assert emu.gemm_plans()[0]["workspace_bytes"] == [65536, 1 << 20, 0][refused]


DESCRIPTOR = (
    r"M=24 N=32 K=48 e4m3 x e4m3 -> \w+ epilogue \w+ scales tensor/tensor.*strides 48/48/32 .*arch 9.0"
)


@pytest.mark.parametrize("settings", [{"refuse_all": True}, {"refuse_candidates": 99}], ids=["none", "all"])
def test_without_an_algorithm_the_error_has_the_whole_descriptor(emu, settings):
    emu.configure_cublaslt(**settings)
    out = torch.full(SHAPE[:2], 7.0)
    with pytest.raises(RuntimeError, match="no algorithm for " + DESCRIPTOR):
        OPS.gemm_out(*operands(SHAPE), None, "none", None, False, False, out, None)
    assert (out == 7).all()
    assert all(plan["chosen"] == -1 for plan in emu.gemm_plans())


@pytest.mark.parametrize("function", ["cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic"])
def test_a_failure_has_the_whole_descriptor_and_leaves_nothing_behind(emu, function):
    args = operands(SHAPE, make=fp8_integers)
    want = reference.gemm(*args, None, "none", None, torch.bfloat16, False)
    emu.fail_next(function, EXECUTION_FAILED)
    expected = f"{function} failed with CUBLAS_STATUS_EXECUTION_FAILED for {DESCRIPTOR}"
    with pytest.raises(RuntimeError, match=expected):
        gemm(args)
    assert_same_bytes(gemm(args), want, "gemm")
    emu.fail_next("cublasLtMatmul", NOT_SUPPORTED)  # once: the next algorithm runs
    assert_same_bytes(gemm(args), want, "gemm")
    assert [plan["chosen"] for plan in emu.gemm_plans()] == [1]


STEPS = ["MatmulDescCreate", "MatrixLayoutCreate", "MatmulPreferenceSetAttribute"]


@pytest.mark.parametrize("function", STEPS)
def test_a_descriptor_that_cannot_be_made_is_an_error_and_no_plan(emu, function):
    emu.fail_next(f"cublasLt{function}", 3)
    with pytest.raises(RuntimeError, match=f"cublasLt{function} failed with CUBLAS_STATUS_ALLOC_FAILED"):
        gemm(operands(SHAPE))
    assert emu.gemm_plans() == []
    calls = {name: count for name, count in emu.calls().items() if name.startswith("cublasLtMat")}
    made, destroyed = (
        sum(count for name, count in calls.items() if name.endswith(end)) for end in ("Create", "Destroy")
    )
    assert made - destroyed == (0 if "Set" in function else 1)  # the one that failed
    check_gemm(EMU, operands(SHAPE))


def test_a_handle_that_cannot_be_made_is_asked_for_again(emu):
    emu.set_device(next(UNUSED))
    emu.fail_next("cublasLtCreate", NOT_INITIALIZED)
    with pytest.raises(RuntimeError, match="cublasLtCreate failed with CUBLAS_STATUS_NOT_INITIALIZED"):
        gemm(operands(SHAPE))
    check_gemm(EMU, operands(SHAPE))
