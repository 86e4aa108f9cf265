"""GEMM plans: built once, found again, next algorithm on failure, errors with the whole descriptor. On the stand-in."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from cases import DTYPES, E4M3, E5M2, FORMATS, fp8, fp8_integers, gemm_bound, normal, scalar
from conftest import Backend, assert_same_bytes, assert_within
from gemm_checks import PAIRS, check_gemm, check_gemm_fp8, check_gemm_out, operands, pairs
from transcast import reference

OPS = torch.ops.transcast_emu
SHAPE = (24, 32, 48)
EMU = Backend("emu", OPS, torch.device("cpu"))
# Devices of the emulated machine, by compute capability; FRESH ones were never used before their one test.
DEVICES = {"9.0": 0, "8.9": 1, "10.0": 2, "12.0": 3}
FRESH = iter(range(4, 8))
NOT_INITIALIZED, EXECUTION_FAILED, NOT_SUPPORTED = 1, 13, 15
GELU_EPILOGUES = {32, 36, 160, 164, 192}
ALL_BUT_PLAIN = {2, 4, 6, *GELU_EPILOGUES}
OBJECTS = ("MatmulDescCreate", "MatrixLayoutCreate", "MatmulPreferenceCreate", "MatmulAlgoGetHeuristic")


@pytest.fixture(autouse=True)
def fresh(emu) -> Iterator[None]:
    """No plans, default settings; afterwards too."""
    emu.reset()
    emu.configure_cublaslt()
    yield
    emu.configure_cublaslt()


def shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """A copy whose address is ``by`` bytes behind a multiple of 256."""
    memory = torch.empty(x.numel() * x.element_size() + 512, dtype=torch.uint8)
    start = -memory.data_ptr() % 256 + by
    copy = memory[start : start + x.numel() * x.element_size()].view(x.dtype).view(x.shape)
    copy.view(torch.uint8).copy_(x.view(torch.uint8))
    return copy


def gemm(args, bias=None, epilogue="none", aux=None, out_dtype=torch.bfloat16, fast_accum=False):
    """All in memory that is as well aligned as a device's: another alignment would be another plan."""
    a, b, *scales = args
    a, b, bias, aux = (x if x is None else shifted(x, 0) for x in (a, b, bias, aux))
    out = shifted(torch.empty(a.shape[0], b.shape[0], dtype=out_dtype), 0)
    OPS.gemm_out(a, b, *scales, bias, epilogue, aux, fast_accum, False, out, None)
    return out


def calls_of(emu, function) -> Counter[str]:
    """How often ``function`` calls each function of the library, and allocates."""
    before = Counter(emu.calls())
    function()
    return Counter({n.removeprefix("cublasLt"): c for n, c in (Counter(emu.calls()) - before).items()})


def kernels_of(emu, function) -> list[str]:
    """The kernels and GEMMs that ``function`` launches, without template arguments."""
    emu.count(True)
    before = len(emu.launches())
    function()
    emu.count(False)
    return [launch["kernel"].split("<")[0] for launch in emu.launches()[before:]]


# --- how often what is built ----------------------------------------------------------------------


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
    right = []

    def work(seed):
        a, b = fp8_integers((64, 256), E4M3, seed), fp8_integers((128, 256), E4M3, seed + 100)
        scales = scalar(2.0**-seed), scalar(2.0)
        want = reference.gemm(a, b, *scales, None, "none", None, torch.float32, False)
        for _ in range(30):
            right.append(torch.equal(gemm([a, b, *scales], out_dtype=torch.float32), want))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 120
    assert [plan["calls"] for plan in emu.gemm_plans()] == [120]


# --- what fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize("refused", [1, 2])
def test_the_next_algorithm_runs_where_one_is_refused(emu, refused):
    emu.configure_cublaslt(refuse_candidates=refused)
    args = operands(SHAPE, make=fp8_integers)
    want = reference.gemm(*args, None, "none", None, torch.bfloat16, False)
    for tries in (refused + 1, 1):  # what was refused is not tried again
        assert calls_of(emu, lambda: assert_same_bytes(gemm(args), want, "gemm"))["Matmul"] == tries
    assert emu.gemm_plans()[0]["chosen"] == refused
    assert emu.gemm_plans()[0]["workspace_bytes"] == [65536, 1 << 20, 0][refused]


DESCRIPTOR = r"M=24 N=32 K=48 e4m3 x e4m3 -> \w+ scales tensor/tensor epilogue \w+ .*strides 48/48/32 .*arch 9.0"


@pytest.mark.parametrize("settings", [{"refuse_all": True}, {"refuse_candidates": 99}], ids=["none", "all fail"])
def test_without_an_algorithm_the_error_has_the_whole_descriptor(emu, settings):
    emu.configure_cublaslt(**settings)
    out = torch.full(SHAPE[:2], 7.0)
    with pytest.raises(RuntimeError, match="no algorithm for " + DESCRIPTOR):
        OPS.gemm_out(*operands(SHAPE), None, "none", None, False, False, out, None)
    assert (out == 7).all()
    assert all(plan["chosen"] == -1 for plan in emu.gemm_plans())


@pytest.mark.parametrize("function", ["cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic"])
def test_a_failure_has_the_whole_descriptor_and_leaves_nothing_behind(emu, function):
    args = operands(SHAPE)
    emu.fail_next(function, EXECUTION_FAILED)
    expected = f"{function} failed with CUBLAS_STATUS_EXECUTION_FAILED for {DESCRIPTOR}"
    with pytest.raises(RuntimeError, match=expected):
        gemm(args)
    check_gemm(EMU, args)
    emu.fail_next("cublasLtMatmul", NOT_SUPPORTED)  # once: the next algorithm runs
    check_gemm(EMU, args)
    assert [plan["chosen"] for plan in emu.gemm_plans() if plan["calls"] > 1] in ([], [1])


@pytest.mark.parametrize("function", ["MatmulDescCreate", "MatrixLayoutCreate", "MatmulPreferenceSetAttribute"])
def test_a_descriptor_that_cannot_be_made_is_an_error_and_no_plan(emu, function):
    emu.fail_next(f"cublasLt{function}", 3)
    with pytest.raises(RuntimeError, match=f"cublasLt{function} failed with CUBLAS_STATUS_ALLOC_FAILED"):
        gemm(operands(SHAPE))
    assert emu.gemm_plans() == []
    made, destroyed = (
        sum(count for name, count in emu.calls().items() if name.startswith("cublasLt") and name.endswith(end))
        for end in ("Create", "Destroy")
    )
    assert made - destroyed == (0 if "Set" in function else 1)  # the one that failed
    check_gemm(EMU, operands(SHAPE))


def test_a_handle_that_cannot_be_made_is_asked_for_again(emu):
    emu.set_device(next(FRESH))
    emu.fail_next("cublasLtCreate", NOT_INITIALIZED)
    with pytest.raises(RuntimeError, match="cublasLtCreate failed with CUBLAS_STATUS_NOT_INITIALIZED"):
        gemm(operands(SHAPE))
    check_gemm(EMU, operands(SHAPE))


# --- graphs, devices, memory ----------------------------------------------------------------------


def test_a_first_product_may_be_captured(emu):
    """Even the handle is made then; nothing waits for the device or allocates outside of torch."""
    emu.set_device(next(FRESH))
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
        "gemm": (lambda: OPS.gemm(*args, bias, "relu", None, torch.bfloat16, True), 1),
        "dgelu": (lambda: OPS.gemm(*args, None, "dgelu", aux, torch.bfloat16, False), 1),
        "gemm_out": (lambda: OPS.gemm_out(*args, None, "gelu_tanh", None, False, False, out, aux), 0),
        "gemm_fp8": (lambda: OPS.gemm_fp8(*args, one, bias, "relu", E4M3, False, None), 3),
    }
    for name, (run, tensors) in cases.items():
        run()
        made = calls_of(emu, run)
        assert (made["workspace"], made["tensor"]) == (1, tensors), name
    assert not {"cudaMalloc", "cudaMemcpyAsync", "cudaStreamSynchronize"} & set(emu.calls())


# --- ways -----------------------------------------------------------------------------------------


def supported(pair, epilogue, bias, aux, out_dtype, arch="9.0") -> str:
    from conftest import emulated

    a, b, out = (str(dtype).removeprefix("torch.") for dtype in (*pair, out_dtype))
    aux_dtype = str(aux.dtype).removeprefix("torch.") if aux is not None else ""
    number = int(arch.replace(".", ""))
    return emulated().gemm_support(
        a, b, epilogue, bias is not None, aux is not None, aux_dtype, out, number, 130000
    )


@pytest.mark.parametrize("arch", DEVICES)
@pairs
def test_the_support_table_is_what_happens(emu, arch, pair):
    """Native: one GEMM and, for FP8, what completes it; else a GEMM and one epilogue kernel."""
    emu.set_device(DEVICES[arch])
    args, (m, n, _) = operands(SHAPE, pair), SHAPE
    for out_dtype in (*DTYPES.values(), *FORMATS.values()):
        is_fp8 = out_dtype in FORMATS.values()
        bias_dtype = torch.float16 if out_dtype == torch.float16 else torch.bfloat16
        for epilogue in ("none", "relu", "gelu_tanh", "dgelu"):
            for bias in (None, torch.ones(n, dtype=bias_dtype)):
                for aux in (None, *(torch.zeros(m, n, dtype=dtype) for dtype in DTYPES.values())):
                    if (aux is not None and epilogue not in ("gelu_tanh", "dgelu")) or (
                        epilogue == "dgelu" and (is_fp8 or aux is None)
                    ):
                        continue
                    way = supported(pair, epilogue, bias, aux, out_dtype, arch)

                    def run():
                        if is_fp8:
                            OPS.gemm_fp8(*args, scalar(1.0), bias, epilogue, out_dtype, False, aux)
                        else:
                            out = torch.zeros(m, n, dtype=out_dtype)
                            read, written = (aux, None) if epilogue == "dgelu" else (None, aux)
                            OPS.gemm_out(*args, bias, epilogue, read, False, False, out, written)

                    expected = {
                        ("native", False): ["gemm"],
                        ("native", True): ["gemm", "finish_fp8_kernel"],
                        ("fallback", False): ["gemm", "epilogue_kernel"],
                        ("fallback", True): ["gemm", "epilogue_fp8_kernel"],
                    }[way, is_fp8]
                    case = (pair, out_dtype, epilogue, bias is not None, aux if aux is None else aux.dtype)
                    assert kernels_of(emu, run) == expected, case
    assert emu.cublaslt_refusals() == []


@pytest.mark.parametrize("refused", [set(), ALL_BUT_PLAIN], ids=["native", "fallback"])
@pytest.mark.parametrize("out_dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("epilogue", ["none", "relu", "gelu_tanh"])
@pairs
def test_both_ways_meet_the_bound(emu, refused, epilogue, out_dtype, pair):
    emu.configure_cublaslt(refuse_epilogues=refused)
    args, (m, n, _) = operands(SHAPE, pair), SHAPE
    dtype = torch.float16 if out_dtype == torch.float16 else torch.bfloat16
    bias = normal((n,), dtype)
    launched = kernels_of(emu, lambda: check_gemm(EMU, args, bias, epilogue, None, out_dtype))
    if refused:
        assert launched == ["gemm", "epilogue_kernel"]
    aux = torch.empty(m, n, dtype=out_dtype) if epilogue == "gelu_tanh" else None
    for with_bias in (None, bias):
        check_gemm_out(EMU, args, torch.empty(m, n, dtype=out_dtype), with_bias, epilogue, aux_out=aux)
    if epilogue == "none":
        check_gemm(EMU, args, None, "dgelu", normal((m, n), out_dtype), out_dtype)


@pytest.mark.parametrize("refused", [set(), ALL_BUT_PLAIN], ids=["native", "fallback"])
@pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("epilogue", ["none", "relu", "gelu_tanh"])
@pairs
def test_both_ways_meet_the_bound_of_fp8(emu, refused, epilogue, dtype, pair):
    emu.configure_cublaslt(refuse_epilogues=refused)
    check_gemm_fp8(EMU, operands(SHAPE, pair), scalar(0.37), normal((SHAPE[1],), torch.bfloat16), epilogue, dtype)


def test_native_and_fallback_agree_to_the_bit_where_sums_are_exact(emu):
    for pair in PAIRS:
        args = operands(SHAPE, pair, fp8_integers)
        for epilogue in ("none", "relu"):
            for out_dtype in DTYPES.values():
                bias = torch.arange(SHAPE[1]).to(torch.float16 if out_dtype == torch.float16 else torch.bfloat16)
                results = []
                for refused in (set(), ALL_BUT_PLAIN):
                    emu.configure_cublaslt(refuse_epilogues=refused)
                    results.append(gemm(args, bias, epilogue, None, out_dtype))
                assert_same_bytes(results[0] + 0.0, results[1] + 0.0, f"{epilogue} {out_dtype}")


COPIES = {
    "aligned": (lambda a: a, []),
    "rows apart": (lambda a: torch.cat((a, a), dim=1)[:, : a.shape[1]], []),
    "16 bytes further": (lambda a: shifted(a, 16), []),
    "one byte further": (lambda a: shifted(a, 1), ["pad_kernel"]),
    "rows apart by 49": (lambda a: torch.cat((a, a[:, :1]), dim=1)[:, : a.shape[1]], ["pad_kernel"]),
}


@pytest.mark.parametrize("what", COPIES)
@pytest.mark.parametrize("which", [0, 1], ids=["a", "b"])
def test_only_operands_that_lie_badly_are_copied(emu, what, which):
    view, copies = COPIES[what]
    args = operands(SHAPE)
    args[which] = view(args[which].view(torch.uint8)).view(E4M3)
    assert kernels_of(emu, lambda: check_gemm(EMU, args)) == [*copies, "gemm"]


def test_a_scale_inside_the_output_is_read_before_it_is_written(emu):
    """Every block of a GEMM reads its scales at its end: also when others have written theirs."""
    ones = [torch.ones(rows, 16).to(E4M3) for rows in (32, 16)]
    out = torch.zeros(32, 16)
    out[0, 0] = 0.5
    OPS.gemm_out(*ones, out[:1, :1], scalar(1.0), None, "none", None, False, False, out, None)
    assert torch.equal(out, torch.full((32, 16), 8.0))


def test_rows_of_one_operand_do_not_move_the_others(emu):
    """An M that is padded for a copy of a changes nothing behind the output's last row."""
    a, b, sa, sb = operands((17, 32, 48))
    wide = torch.cat((a.view(torch.uint8), torch.zeros(17, 1, dtype=torch.uint8)), dim=1)
    out = torch.full((32, 32), 7.0)
    OPS.gemm_out(wide[:, :48].view(E4M3), b, sa, sb, None, "none", None, False, False, out[:17], None)
    want, _ = reference.gemm_fp64(a, b, sa, sb, None, "none", None, torch.float32)
    assert_within(out[:17], want, torch.full((17, 32), 1e-2, dtype=torch.float64), "gemm_out")
    assert (out[17:] == 7).all()


def test_a_plan_takes_the_pointers_of_each_call(emu):
    """Operands, scales, bias, aux and output are others each time."""
    m, n, k = SHAPE
    kept = []  # so that no address comes twice
    for seed in range(1, 4):
        args = [fp8_integers((m, k), E4M3, seed), fp8_integers((n, k), E4M3, -seed), scalar(seed), scalar(2.0**-seed)]
        bias = shifted(torch.full((n,), float(seed), dtype=torch.bfloat16), 0)
        aux = shifted(torch.full((m, n), seed - 2.0, dtype=torch.bfloat16), 0)
        want = reference.gemm(*args, bias, "relu", None, torch.bfloat16, False)
        assert_same_bytes(gemm(args, bias, "relu") + 0.0, want + 0.0, "relu")
        y, pre = reference.gemm_fp64(*args, None, "dgelu", aux, torch.bfloat16)
        bound, _ = gemm_bound(*args, None, "dgelu", y, pre, torch.bfloat16)
        assert_within(gemm(args, None, "dgelu", aux), y, bound, "dgelu")
        kept += [args, bias, aux]
    assert [plan["calls"] for plan in emu.gemm_plans()] == [3, 3]
