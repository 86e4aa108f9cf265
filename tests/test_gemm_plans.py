"""GEMM plans: built once, found again, bounded, safe for threads, graphs and devices. On the emulator."""

from __future__ import annotations

import pytest
import torch

from cases import E4M3, E5M2, fp8, fp8_integers, gemm_bound, scalar
from conftest import assert_same_bytes, assert_within
from gemm_checks import check_gemm, check_gemm_fp8, operands, right_in_threads
from gemm_emu import EMU, OPS, SHAPE, UNUSED, calls_of, fresh, gemm, kernels_of, shifted  # noqa: F401
from transcast import reference

OBJECTS = ("MatmulDescCreate", "MatrixLayoutCreate", "MatmulPreferenceCreate", "MatmulAlgoGetHeuristic")


def test_a_plan_is_built_once(emu):
    first = calls_of(emu, lambda: gemm(operands(SHAPE)))
    assert [first[name] for name in OBJECTS] == [1, 4, 1, 1] and first["MatmulPreferenceDestroy"] == 1
    args = operands(SHAPE, make=fp8_integers)
    again = calls_of(emu, lambda: gemm(args))
    # Only the pointers of the two scales are set anew; nothing else is asked or made.
    assert again == {"MatmulDescSetAttribute": 2, "Matmul": 1, "workspace": 1}
    assert len(emu.gemm_plans()) == 1
    destroyed = calls_of(emu, emu.clear_gemm_plans)
    assert destroyed == {"MatmulDescDestroy": 1, "MatrixLayoutDestroy": 4}


VARIATIONS = {
    "m": {"shape": (25, 32, 48)},
    "n": {"shape": (24, 48, 48)},
    "k": {"shape": (24, 32, 64)},
    "formats": {"pair": (E5M2, E4M3)},
    "mirrored formats": {"pair": (E4M3, E5M2)},
    "output": {"out_dtype": torch.float16},
    "bias": {"bias": torch.zeros(32, dtype=torch.bfloat16)},
    "epilogue": {"epilogue": "relu"},
    "fast_accum": {"fast_accum": True},
}


@pytest.mark.parametrize("what", VARIATIONS)
def test_what_needs_a_plan_of_its_own(emu, what):
    def run(shape=SHAPE, pair=(E4M3, E4M3), **rest):
        gemm(operands(shape, pair), **rest)

    for settings in ({}, VARIATIONS[what], {}, VARIATIONS[what]):
        run(**settings)
    plans = emu.gemm_plans()
    assert [plan["calls"] for plan in plans] == [2, 2]
    assert plans[0]["description"] != plans[1]["description"]


@pytest.mark.parametrize("which", ["a", "b", "bias", "out"])
def test_an_algorithm_gets_no_pointer_that_is_less_aligned_than_it_was_chosen_for(emu, which):
    """The stand-in's algorithms refuse a pointer that breaks what the heuristic was promised."""
    a, b, sa, sb = operands(SHAPE, make=fp8_integers)
    bias, out = torch.ones(SHAPE[1], dtype=torch.bfloat16), torch.empty(SHAPE[:2], dtype=torch.bfloat16)
    want = reference.gemm(a, b, sa, sb, bias, "none", None, torch.bfloat16, False)
    for by in (0, 16, 32, 0):
        moved = {"a": a, "b": b, "bias": bias, "out": out}
        moved = {name: shifted(x, by if name == which else 0) for name, x in moved.items()}
        launched = kernels_of(
            emu,
            lambda: OPS.gemm_out(
                moved["a"], moved["b"], sa, sb, moved["bias"], "none", None, False, False, moved["out"], None
            ),
        )
        assert launched == ["gemm"]
        assert_same_bytes(moved["out"], want, "gemm_out")
    assert [plan["calls"] for plan in emu.gemm_plans()] == [2, 1, 1]
    assert all(plan["chosen"] == 0 for plan in emu.gemm_plans())


def test_accumulation_is_a_plan_of_its_own_and_adds_in_place(emu):
    args, out = operands(SHAPE, make=fp8_integers), torch.zeros(SHAPE[:2])
    for accumulate in (False, True, True):
        OPS.gemm_out(*args, None, "none", None, False, accumulate, out, None)
    want = reference.gemm(*args, None, "none", None, torch.float32, False)
    assert_same_bytes(out, 3 * want, "out")
    assert [plan["calls"] for plan in emu.gemm_plans()] == [2, 1]


def test_the_least_recently_used_plan_goes_first(emu):
    one = scalar(1.0)
    b = fp8((16, 16), E4M3, 2)

    def run(m):
        gemm([fp8((m, 16), E4M3, 1), b, one, one])

    run(2000)
    for m in range(1, 1024):
        run(m)
    assert len(emu.gemm_plans()) == 1024
    run(2000)
    assert calls_of(emu, lambda: run(3000))["MatmulDescDestroy"] == 1
    plans = emu.gemm_plans()
    assert len(plans) == 1024
    assert [plan["description"].split()[0] for plan in plans[:3]] == ["M=3000", "M=2000", "M=1023"]
    assert plans[-1]["description"].startswith("M=2 ")


def test_a_plan_says_what_it_is_and_did(emu):
    bias = torch.zeros(32, dtype=torch.bfloat16)
    gemm(operands(SHAPE, (E5M2, E4M3)), bias, "gelu_tanh", fast_accum=True)
    (plan,) = emu.gemm_plans()
    description = plan.pop("description")
    assert plan == {"device": 0, "candidates": 3, "chosen": 0, "workspace_bytes": 65536, "calls": 1}
    for part in (
        "M=24 N=32 K=48", "e5m2 x e4m3 -> bfloat16", "epilogue gelu_tanh", "bias bfloat16", "fast_accum",
        "strides 48/48/32", "arch 9.0", "cuBLASLt ",
    ):  # fmt: skip
        assert part in description, description


def test_threads_share_a_plan(emu):
    """Its descriptor holds the pointers of one call at a time: each thread gets its own product.

    The stand-in refuses to change a descriptor that a call uses.
    """
    assert right_in_threads(lambda args: gemm(args, out_dtype=torch.float32)) == [True] * 120
    assert [plan["calls"] for plan in emu.gemm_plans()] == [120]


def test_a_plan_takes_the_pointers_of_each_call(emu):
    """Operands, scales, bias, aux and output are others each time."""
    m, n, k = SHAPE
    kept = []  # so that no address comes twice
    for seed in range(1, 4):
        scales = [scalar(seed), scalar(2.0**-seed)]
        args = [fp8_integers((m, k), E4M3, seed), fp8_integers((n, k), E4M3, -seed), *scales]
        bias = shifted(torch.full((n,), float(seed), dtype=torch.bfloat16), 0)
        aux = shifted(torch.full((m, n), seed - 2.0, dtype=torch.bfloat16), 0)
        want = reference.gemm(*args, bias, "relu", None, torch.bfloat16, False)
        assert_same_bytes(gemm(args, bias, "relu") + 0.0, want + 0.0, "relu")
        y, pre = reference.gemm_fp64(*args, None, "dgelu", aux, torch.bfloat16)
        bound, _ = gemm_bound(*args, None, "dgelu", y, pre, torch.bfloat16)
        assert_within(gemm(args, None, "dgelu", aux), y, bound, "dgelu")
        kept += [args, bias, aux]
    assert [plan["calls"] for plan in emu.gemm_plans()] == [3, 3]


# --- graphs, devices, memory ----------------------------------------------------------------------


def test_a_first_product_may_be_captured(emu):
    """Even the handle is made then; nothing waits for the device or allocates outside of torch."""
    emu.set_device(next(UNUSED))
    emu.configure(capturing=True)
    made = calls_of(emu, lambda: check_gemm(EMU, operands(SHAPE)))
    assert made["Create"] == 1
    made += calls_of(emu, lambda: check_gemm(EMU, operands((7, 15, 33)), None, "gelu_tanh"))
    made += calls_of(emu, lambda: check_gemm_fp8(EMU, operands(SHAPE), scalar(0.4), None, "gelu_tanh", E4M3))
    assert not {"cudaMalloc", "cudaStreamSynchronize", "cudaMemset"} & set(made)


def test_devices_have_plans_and_handles_of_their_own(emu):
    args = operands(SHAPE, make=fp8_integers)
    want = reference.gemm(*args, None, "none", None, torch.bfloat16, False)
    for device in (0, 1, 0, 1):
        emu.set_device(device)
        assert_same_bytes(gemm(args), want, f"gemm on device {device}")
    assert sorted((plan["device"], plan["calls"]) for plan in emu.gemm_plans()) == [(0, 2), (1, 2)]


def test_nothing_is_allocated_beyond_results_and_workspace(emu):
    bias = torch.zeros(32, dtype=torch.bfloat16)
    aux = torch.zeros(SHAPE[:2], dtype=torch.bfloat16)
    out = torch.zeros(SHAPE[:2], dtype=torch.bfloat16)
    args = operands(SHAPE)
    one = scalar(1.0)
    cases = {
        "gemm": (lambda: OPS.gemm(*args, bias, "gelu_tanh", None, torch.bfloat16, True), 1, 1),
        "dgelu": (lambda: OPS.gemm(*args, None, "dgelu", aux, torch.bfloat16, False), 1, 1),
        "gemm_out": (lambda: OPS.gemm_out(*args, None, "gelu_tanh", None, False, False, out, aux), 1, 0),
        # The library's amax, and the FP32 matrix of a fallback.
        "gemm_fp8": (lambda: OPS.gemm_fp8(*args, one, bias, "none", E4M3, False, None), 2, 3),
        "relu": (lambda: OPS.gemm(*args, bias, "relu", None, torch.bfloat16, True), 2, 1),
    }
    for name, (run, workspaces, tensors) in cases.items():
        run()
        made = calls_of(emu, run)
        assert (made["workspace"], made["tensor"]) == (workspaces, tensors), name
        assert not {"cudaMalloc", "cudaMemcpyAsync"} & made.keys(), name
    assert "cudaStreamSynchronize" not in emu.calls()
