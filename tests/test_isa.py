"""What must not change a byte: the instruction set, the number of threads, torch's flush-to-zero switch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import transcast as tc
from cases import DTYPES, E4M3, E5M2, FORMATS, SPECIAL_VALUES, fp8, normal, scalar
from conftest import assert_same_bytes, moved
from transcast import reference

TESTS = Path(__file__).parent
# Values, tails and tiles: what a vector path can get wrong. The rest of the suite knows no instruction set.
# Whole names: pytest refuses one that is not there.
CORE = {
    "amax": "bytes_peak_in_every_place bytes_every_pattern bytes_fp32_mantissas_and_exponents bytes_any_view",
    "cast": "bytes_where_rounding_decides bytes_any_view S8_transposed_store_equals_plain_transpose "
    "bytes_every_pattern[odd-dtype0-e4m3] bytes_every_pattern[odd-dtype1-e4m3] "
    "bytes_every_pattern[odd-dtype0-e5m2] bytes_every_pattern[odd-dtype1-e5m2] "
    "bytes_every_pattern[min-dtype0-e4m3] bytes_every_pattern[min-dtype1-e4m3] "
    "bytes_every_pattern[min-dtype0-e5m2] bytes_every_pattern[min-dtype1-e5m2]",
    "quantize": "bytes_every_pattern bytes_any_view S8_transposed_store_equals_plain_transpose",
    "act": "bytes_every_pattern bytes_every_pattern_of_up bytes_dense_fp32 bytes_any_view "
    "S8_transposed_store_equals_plain_transpose",
    "dact": "bytes_every_pattern bytes_dense_fp32 bytes_any_view S8_transposed_store_equals_plain_transpose",
    "dequantize": "bytes_every_code bytes_where_rounding_decides bytes_any_view",
    "transpose": "bytes_every_code bytes_any_view S8_ragged_tiles",
    "gemm": "bytes_every_code_reaches_the_product bound_bias_and_epilogue bound_dgelu bound_any_view "
    "bound_any_view_of_b bound_gelu_tanh_over_its_range",
    "gemm_out": "bound_aux_out bound_accumulate",
    "gemm_fp8": "bound_fp8_output bound_fp8_output_with_bias_and_aux_out",
}
CORE_TESTS = [f"{TESTS}/test_{op}.py::test_{name}" for op, names in CORE.items() for name in names.split()]
ISAS = ["plain", "avx2", "avx512"]
BEST = {"AVX512": "avx512", "AVX2": "avx2"}.get(torch.backends.cpu.get_cpu_capability(), "plain")


def running_isa() -> str:
    (feature,) = (f for f in tc.info().features if f.name == "ops on the CPU")
    return feature.note.split()[0]


def python(*args: str, isa: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"TRANSCAST_CPU_ISA": isa, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *args], env=environment, capture_output=True, text=True, timeout=600
    )


def test_the_best_instruction_set_is_chosen():
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_isa; print(test_isa.running_isa())"
    result = python("-c", code, str(TESTS), isa="")
    assert result.stdout.strip() == BEST, result.stdout + result.stderr


@pytest.mark.parametrize("isa", [isa for isa in ISAS[: ISAS.index(BEST) + 1] if isa != running_isa()])
def test_bytes_on_each_instruction_set(isa):
    """The core of the op tests again, in a process that is told to use another path."""
    command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *CORE_TESTS]
    result = python(*command, f"--expect-isa={isa}", isa=isa)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]


def calls() -> list[tuple[str, tuple]]:
    """The cast-like ops on data of several blocks, tiles and strips, which threads share."""
    found = []
    for dtype in DTYPES.values():
        x = torch.cat([make((130, 515), dtype) for make in SPECIAL_VALUES.values()])
        found.append(("amax", (x,)))
        for y in (x, x.t(), normal((1500, 257), dtype)):
            found += [("cast_transpose_dbias", (y, scalar(1.7), E5M2)), ("cast", (y, scalar(2.0**126), E4M3))]
            found += [("quantize_transpose_dbias", (y, E4M3)), ("quantize", (y, E4M3, True))]
        x, g = normal((1500, 514), dtype), normal((1500, 257), dtype, 1)
        found.append(("act_quantize_transpose", (x, E4M3, "gelu_tanh")))
        found.append(("act_cast", (x, scalar(1.7), E5M2, "swiglu")))
        found.append(("dact_quantize_transpose_dbias", (g, x, E5M2, "swiglu")))
    for fmt in FORMATS.values():
        found += [
            ("transpose", (fp8((1100, 333), fmt),)),
            ("dequantize", (fp8((700, 333), fmt), scalar(1e-39), DTYPES["fp32"])),
        ]
    return found


def run_all(backend) -> list[torch.Tensor]:
    results = [backend.run(op, *args) for op, args in calls()]
    return [t for r in results for t in ([r] if isinstance(r, torch.Tensor) else r)]


def test_thread_counts_change_nothing(backend, thread_count):
    torch.set_num_threads(1)
    want = run_all(backend)
    for threads in (2, 3):
        torch.set_num_threads(threads)
        for got, expected in zip(run_all(backend), want):
            assert_same_bytes(
                got, expected, f"{threads} threads", any_nan=got.dtype == torch.float32 and got.dim() > 0
            )


@pytest.fixture
def flush_denormal():
    """Switches torch's flush-to-zero on and, after the test, off again."""
    yield lambda: torch.set_flush_denormal(True)
    torch.set_flush_denormal(False)


def flushes() -> bool:
    return bool((torch.tensor([1e-40]) * 1.0 == 0).all())


def test_flush_denormal_changes_nothing(backend, flush_denormal, thread_count):
    tiny = SPECIAL_VALUES["subnormals"]
    cases = [(op, args) for op, args in calls() if args[0].numel() < 400_000]
    for dtype in DTYPES.values():
        x = tiny((70, 90), dtype)
        cases += [
            ("amax", (x,)),
            ("cast_transpose", (x, scalar(2.0**126), E4M3)),
            ("quantize_transpose", (x, E5M2)),
        ]
        cases += [("act_cast", (x, scalar(2.0**126), E4M3, "silu")), ("act_quantize", (x, E5M2, "gelu_tanh"))]
        cases.append(("dact_cast_transpose_dbias", (x, x, scalar(2.0**126), E4M3, "silu")))
        cases += [("quantize", (x[:1, :1], E4M3)), ("cast", (normal((9, 9), dtype), scalar(1e-40), E4M3))]
        cases += [
            ("dequantize", (fp8((40, 41), E5M2), scalar(v), dtype)) for v in (1e-40, 2.0**-126, 2.0**-24)
        ]
    expected = [backend.run(op, *args) for op, args in cases]
    assert not flushes() and flush_denormal()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        got = [backend.run(op, *args) for op, args in cases]
        assert flushes(), "an op left the switch changed"
        torch.set_flush_denormal(False)
        for (op, _), g, e in zip(cases, got, expected):
            for one, other in zip(*([t] if isinstance(t, torch.Tensor) else t for t in (g, e))):
                assert_same_bytes(one, other, op, any_nan=one.dim() > 0)
        torch.set_flush_denormal(True)


def test_flush_denormal_does_not_reach_a_gemm(backend, flush_denormal):
    """Scales, bias, accumulator and output that are subnormal: exact results, so bytes."""
    one, tiny = scalar(1.0), scalar(2.0**-130)
    for m in (2, 20):
        a, b = torch.ones(m, 8).to(E4M3), torch.ones(5, 8).to(E4M3)
        bias = torch.full((5,), 3e-7, dtype=torch.float16)
        added = torch.full((m, 5), 2.0**-140)
        zeros = torch.zeros(m, 8).to(E4M3)
        want = reference.gemm(a, b, one, tiny, None, "none", None, torch.float32, False)
        want_bias = reference.gemm(zeros, b, one, one, bias, "none", None, torch.float16, False)
        flush_denormal()
        got = backend.run("gemm", a, b, one, tiny, None, "none", None, torch.float32, False)
        got_bias = backend.run("gemm", zeros, b, one, one, bias, "none", None, torch.float16, False)
        out = moved(added.clone(), backend.device)
        args = moved((zeros, b, one, one), backend.device)
        backend.ops.gemm_out(*args, None, "none", None, False, True, out, None)
        q, _, amax = backend.run(
            "gemm_fp8", a, b, one, tiny, scalar(2.0**126), None, "none", E4M3, False, None
        )
        torch.set_flush_denormal(False)
        assert_same_bytes(got, want, "a subnormal scale")
        assert_same_bytes(got_bias, want_bias, "a subnormal bias")
        assert_same_bytes(out.cpu(), added, "accumulation onto subnormals")
        assert amax.item() == 2.0**-127 and (q.to(torch.float32) == 0.5).all()
