"""gpu_check.sh goes through its steps without a GPU, and what it says follows from what it found."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path += [str(BENCHMARKS), str(BENCHMARKS / "gpu")]

import capture  # noqa: E402
import check  # noqa: E402
import clocks  # noqa: E402
import composite  # noqa: E402
import kernels  # noqa: E402
import layers  # noqa: E402
import lt_runs  # noqa: E402
import probe_cublaslt  # noqa: E402
import products  # noqa: E402
import queries  # noqa: E402
import record  # noqa: E402
import sanitize  # noqa: E402
import smoke  # noqa: E402
import smoke_products  # noqa: E402
import suite  # noqa: E402
import summary  # noqa: E402
import targets  # noqa: E402
from lt_query import Query  # noqa: E402
from steps import STEPS, StepPlan  # noqa: E402

PARTS = ["probe", "training"]  # of a dry run; all of them take a minute or two


def run(*arguments: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHON": sys.executable}
    command = ["bash", str(BENCHMARKS / "gpu_check.sh"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd="/", timeout=300)


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_dry_run(tmp_path):
    done = run(str(tmp_path / "out"), "--dry", "--only", ",".join(PARTS))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dry run" in done.stdout
    found = json.loads((tmp_path / "out/summary.json").read_text())
    assert found["right"] and found["wrong"] == []
    assert {name: step["status"] for name, step in found["steps"].items()} == dict.fromkeys(PARTS, "passed")
    assert {mark["verdict"] for mark in found["marks"]} == {"not measured"}  # dry figures measure nothing
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "rows.jsonl",
        "summary.json",
        "logs.tar.gz",
    }
    with tarfile.open(tmp_path / "out/logs.tar.gz") as logs:
        assert set(logs.getnames()) == {f"logs/{part}.log" for part in PARTS}
    entries = rows_of(tmp_path / "out/rows.jsonl")
    assert all({"device", "driver", "torch", "commit", "sources"} <= entry.keys() for entry in entries)
    assert {entry["scope"] for entry in entries} == {"dry"}
    assert {entry["step"]: entry["status"] for entry in entries if entry["op"] == "step"} == dict.fromkeys(
        PARTS, "passed"
    )
    measured = [entry for entry in entries if entry["step"] == "training" and entry.get("us")]
    assert {entry["op"] for entry in measured} == {"decoder_layer", "training_step_1b"}
    queries = [entry for entry in entries if entry["step"] == "probe"]
    assert sum(entry["op"] == "product" for entry in queries) > 150
    (counts,) = [entry for entry in queries if entry["op"] == "products"]
    assert (counts["wrong"], counts["refused"]) == (0, 0) and counts["right"] > 80 and counts["recorded"] > 20
    if not any("missing" in entry for entry in queries):  # where there is a cuBLASLt
        assert sum(entry["op"] == "heuristic" for entry in queries) > 1800


@pytest.mark.parametrize(
    ("part", "ops", "contenders"),
    [
        (kernels, {*kernels.MARKED, *kernels.OTHERS, "copy", "multi_quantize_transpose"}, {"copy", "eager"}),
        (products, {"gemm"}, {"matmul bf16", "_scaled_mm", "ours, fast_accum off", "ours, bias"}),
        (
            layers,
            {"linear", "linear_graph", "linear_host", "gemm_host"},
            {"nn.Linear", "_scaled_mm composite"},
        ),
    ],
    ids=["kernels", "products", "layers"],
)
def test_benchmarks_at_tiny_sizes(tmp_path, part, ops, contenders):
    step = step_in(tmp_path)
    part.run(step)
    measured = [entry for entry in rows_of(tmp_path / "rows.jsonl") if entry.get("us")]
    assert step.failures == 0
    assert ops <= {entry["op"] for entry in measured}
    assert {"ours", *contenders} <= {entry["contender"] for entry in measured}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dry", "--only", "smoke,benchmarks"], "there is no step benchmarks"),
        (["--dry", "--torchao", "/nowhere/torchao.whl"], "it is not there"),
        (["--dry"], "has results already"),
    ],
)
def test_wrong_arguments(tmp_path, capsys, arguments, message):
    (tmp_path / "rows.jsonl").touch()
    with pytest.raises(SystemExit) as stopped:
        check.arguments([str(tmp_path), *arguments])
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def program(folder: Path, name: str, code: str) -> str:
    (folder / f"{name}.py").write_text(code)
    return str(folder / f"{name}.py")


def outcomes(monkeypatch, folder: Path, steps: list[StepPlan], limit: int = 60) -> check.Check:
    """The check of these steps instead of its own."""
    monkeypatch.setattr(check, "STEPS", steps)
    out = folder / "out"
    out.mkdir()
    options = argparse.Namespace(outdir=out, dry=True, quick=False, only=None, limit=limit)
    made = check.Check(options)
    made.right = made.run()
    return made


def test_steps_stop_in_time_and_need_others(monkeypatch, tmp_path, capsys):
    slow = program(tmp_path, "slow", "import time; time.sleep(60)")
    fine, bad = program(tmp_path, "fine", ""), program(tmp_path, "bad", "raise SystemExit(3)")
    steps = [
        StepPlan("fine", 0, 9, fine, needs=(), correctness=True),
        StepPlan("bad", 0, 9, bad, needs=()),
        StepPlan("after", 1, 9, fine, needs=("bad",)),
        StepPlan("slow", 2, 0, slow, needs=("fine",)),
    ]
    made = outcomes(monkeypatch, tmp_path, steps)
    status = {outcome.step.name: outcome.status for outcome in made.outcomes}
    assert status == {"fine": "passed", "bad": "failed", "after": "not run", "slow": "out of time"}
    assert made.right  # what judges has passed
    assert "needs bad" in capsys.readouterr().out
    written = {entry["step"]: entry["status"] for entry in rows_of(tmp_path / "out/rows.jsonl")}
    assert written == status


ROW = """
import signal, sys, time
out = open(sys.argv[sys.argv.index("--out") + 1], "a", buffering=1)
print('{"step": "writer", "op": "begun"}', file=out)
def end(*_):
    print('{"step": "writer", "op": "ended"}\\n{"torn', file=out)
    sys.exit()
signal.signal(signal.SIGTERM, end)
time.sleep(60)
"""


def test_a_step_that_is_stopped_may_leave_a_last_row(monkeypatch, tmp_path):
    steps = [StepPlan("smoke", 0, 1, program(tmp_path, "writer", ROW), needs=(), correctness=True)]
    made = outcomes(monkeypatch, tmp_path, steps)
    assert made.outcomes[0].status == "out of time" and not made.right
    assert [row["op"] for row in rows_of(tmp_path / "out/rows.jsonl")] == ["begun", "ended", "step"]


def test_results_are_there_before_the_check_ends(monkeypatch, tmp_path):
    """Each step finds the rows of those before it in OUTDIR, and that it has not been reached."""
    look = f"""
import json
found = json.load(open("{tmp_path}/out/summary.json"))
assert not found["right"] and found["steps"]["second"]["status"] == "not reached", found
assert json.loads(open("{tmp_path}/out/rows.jsonl").readlines()[-1])["step"] == "first"
"""
    programs = program(tmp_path, "first", ""), program(tmp_path, "second", look)
    steps = [
        StepPlan(n, i, 9, p, needs=(), correctness=True)
        for i, (n, p) in enumerate(zip(("first", "second"), programs, strict=True))
    ]
    assert outcomes(monkeypatch, tmp_path, steps).right


def test_a_check_that_is_ended_is_not_right(tmp_path):
    """By a signal, while its first step runs: what is not reached is not right."""
    env = {**os.environ, "PYTHON": sys.executable}
    command = [
        "bash",
        str(BENCHMARKS / "gpu_check.sh"),
        str(tmp_path / "out"),
        "--dry",
        "--only",
        "probe,smoke",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        while not (tmp_path / "out").exists():
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "NOT right" in output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "rows.jsonl",
        "summary.json",
        "logs.tar.gz",
    }


@pytest.mark.parametrize("scope", ["dry", "full"])
def test_a_missing_tool_is_no_success_on_a_gpu(scope):
    step = StepPlan("sanitizers", 0, 9, "gpu/sanitize.py", correctness=True)
    found = summary.of([], [summary.Outcome(step, "not available")], [step], scope, {})
    assert found["right"] is (scope == "dry")


def test_a_tool_that_is_not_there_has_its_own_status(monkeypatch, tmp_path):
    code = f"raise SystemExit({record.NOT_AVAILABLE})"
    made = outcomes(
        monkeypatch, tmp_path, [StepPlan("tool", 0, 9, program(tmp_path, "tool", code), needs=())]
    )
    assert made.outcomes[0].status == "not available"
    for dry in (True, False):
        monkeypatch.setattr(sanitize, "find", lambda: None)
        monkeypatch.setattr(sanitize, "PASS", [sys.executable, program(tmp_path, "watched", "")])
        arguments = [
            "--name",
            "sanitizers",
            "--out",
            str(tmp_path / "rows.jsonl"),
            "--device",
            "cpu" if dry else "cuda",
        ]
        monkeypatch.setenv(record.FACTS, "{}") if dry else None
        monkeypatch.setattr(record, "find_facts", lambda device: {})
        with pytest.raises(SystemExit) as ended:
            sanitize.main([*arguments, *["--dry"] * dry])
        assert ended.value.code == record.NOT_AVAILABLE


@pytest.mark.parametrize(("code", "limit"), [("raise SystemExit(1)", 60), ("", 1)])
def test_what_judges_must_pass(monkeypatch, tmp_path, code, limit):
    steps = [StepPlan("smoke", 0, 9, program(tmp_path, "smoke", code), needs=(), correctness=True)]
    made = outcomes(monkeypatch, tmp_path, steps, limit)
    assert made.outcomes[0].status == ("failed" if code else "not run") and not made.right


def test_steps_name_programs_that_are_there():
    for step in STEPS:
        assert (BENCHMARKS / step.program).is_file()
        assert set(step.needs) <= {other.name for other in STEPS if other.stage < step.stage}
    assert sum(step.seconds for step in STEPS if step.stage == 0) > 0
    before_training = {s.stage: s.seconds for s in sorted(STEPS, key=lambda s: s.seconds) if s.stage < 5}
    assert sum(before_training.values()) <= check.LIMITS["full"]  # each stage takes its longest step's time
    assert [s.name for s in STEPS if s.stage in (4, 5)] == ["products", "training"]
    assert [step.stage for step in STEPS] == sorted(step.stage for step in STEPS)


def step_in(folder: Path) -> record.Step:
    return record.Step("step", folder / "rows.jsonl", "cpu", quick=False, dry=True)


def test_an_error_becomes_a_row_and_the_step_goes_on(tmp_path):
    step = step_in(tmp_path)
    step.attempt("broken", lambda: torch.zeros(2) @ torch.zeros(3))
    step.attempt("fine", lambda: step.row(op="fine", ok=True))
    broken, fine = rows_of(tmp_path / "rows.jsonl")
    assert step.failures == 1 and fine["op"] == "fine"
    assert (broken["op"], broken["ok"]) == ("broken", False) and broken["error"].startswith("RuntimeError: ")
    assert "broken" in summary.described(broken)


def test_marks_follow_from_rows():
    shape, cube = [8192, 8192], [8192] * 3
    cast = {"op": "cast", "shape": shape, "dtype": "bf16", "how": "cold", "contender": "ours", "us": 10.0}
    gemm = {"op": "gemm", "shape": cube, "dtype": "bf16", "how": "queued"}
    layer = {"op": "decoder_layer", "shape": [1, 2], "dtype": "bf16", "how": "eager"}
    entries = [
        {**cast, "percent_of_ceiling": 84.0},
        {**cast, "how": "warm", "percent_of_ceiling": 99.0},
        {**gemm, "contender": "ours", "us": 500.0},
        {**gemm, "contender": "matmul bf16", "us": 1000.0},
        {**layer, "contender": "ours", "us": 10.0},
        {**layer, "contender": "nn.Linear", "us": 13.0},
        {**layer, "contender": "nn.Linear", "us": 99.0, "scope": "dry"},
    ]
    found = {mark["mark"]: mark for mark in targets.verdicts(entries)}
    assert found["cast 8192x8192 bf16"]["verdict"] == "missed"
    assert found["gemm 8192x8192x8192 bf16"]["verdict"] == "met"
    assert found["gemm 8192x8192x8192 bf16"]["got"] == 2
    assert found["decoder_layer bf16"]["got"] == 1.3 and found["decoder_layer bf16"]["verdict"] == "missed"
    assert found["linear_host bf16"]["verdict"] == "not measured"
    later = [*entries, {**cast, "percent_of_ceiling": 90.0}]
    assert {m["mark"]: m["verdict"] for m in targets.verdicts(later)}["cast 8192x8192 bf16"] == "met"


QUERIES = {
    "bias": Query(m=48, n=32, k=160, epi="bias", bias="bf16"),
    "relu_bias": Query(m=48, n=32, k=160, epi="relu_bias", bias="bf16", d="f32"),
    "gelu_aux": Query(m=48, n=32, k=160, epi="gelu_aux", aux="bf16"),
    "dgelu": Query(m=48, n=32, k=160, epi="dgelu", aux="bf16"),
    "fp8": Query(m=48, n=32, k=160, d="e4m3", dscale=True, amax=True),
    "blocks": Query(m=48, n=32, k=160, sa="vec128", sb="blk128x128"),
    "beta": Query(m=48, n=32, k=160, d="f32"),
}
FAULTS = {  # what a wrong rule would do to the result
    "scale": lambda run: run.d.copy_((run.d.float() * 1.2).to(run.d.dtype)),
    "one_element": lambda run: run.d.view(-1)[7:8].copy_((run.d.view(-1)[7:8].float() + 30).to(run.d.dtype)),
    "unwritten": lambda run: run.d.fill_(float("nan")),
    "amax": lambda run: run.amax.mul_(1.5),
    "aux": lambda run: run.aux.zero_(),
}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_probe_sees_wrong_results(name, fault):
    def multiply(run: lt_runs.Run) -> str:
        run.compute()
        if fault:
            FAULTS[fault](run)
        return "SUCCESS"

    query = QUERIES[name]
    found = lt_runs.verdict(query, float(name == "beta"), "cpu", multiply)
    seen = {"amax": query.amax, "aux": query.epi == "gelu_aux"}.get(fault, fault is not None)
    assert found["ok"] is not seen, found


@pytest.mark.parametrize(
    ("epilogue", "acc", "beta", "y", "pre"),
    [
        ("default", 2.0, 0.0, 2.0, 2.0),
        ("default", 2.0, 1.0, 9.0, 9.0),
        ("bias", 2.0, 0.0, 5.0, 5.0),
        ("relu_bias", -4.0, 0.0, 0.0, -1.0),
        ("gelu", 2.0, 0.0, 1.9545977, 2.0),
        ("gelu_aux_bias", -2.0, 0.0, 0.8411920, 1.0),
        ("dgelu", 3.0, 0.0, 1.5, 3.0),
    ],
)
def test_probe_knows_the_epilogues(epilogue, acc, beta, y, pre):
    """With a bias of 3, a C of 7 and an aux of 0; gelu's values from its definition."""
    run = lt_runs.Run(Query(m=16, n=16, k=16, epi=epilogue), beta)
    for tensor, value in ((run.bias, 3), (run.c, 7), (run.aux_given, 0)):
        tensor.fill_(value)
    results = run.epilogue(torch.full((16, 16), acc, dtype=torch.float64))
    for got, expected in zip(results, (y, pre), strict=True):
        assert torch.allclose(got, torch.full_like(got, expected), atol=1e-6)


def test_probe_spreads_scales_as_documented():
    rows, k = 200, 300
    stored, each = lt_runs.scales("vec128", rows, k)
    assert stored.shape == (3, 200) and each.shape == (rows, k)
    assert each[130, 127] == stored[0, 130] and each[130, 128] == stored[1, 130]
    stored, each = lt_runs.scales("blk128x128", rows, k)
    assert stored.shape == (2, 4) and each.shape == (rows, k)
    assert each[127, 299] == stored[0, 2] and each[128, 127] == stored[1, 0]
    stored, each = lt_runs.scales("outer_vec", rows, k)
    assert stored.shape == (200,) and each[7, 9] == stored[7]


@pytest.mark.parametrize("drops", [False, True])
def test_probe_sees_where_a_nan_is_dropped(drops):
    def multiply(run: lt_runs.Run) -> str:
        run.compute()
        if drops:
            run.d.copy_(run.d.float().nan_to_num().to(run.d.dtype))
            run.amax.nan_to_num_()
        return "SUCCESS"

    for query in queries.non_finite():
        seen = {"d": not drops} | ({"amax": not drops} if query.amax else {})
        assert lt_runs.shows_nan(query, "cpu", multiply) == {"status": "SUCCESS", **seen}


def test_probe_notes_a_refusal():
    found = lt_runs.verdict(QUERIES["bias"], 0.0, "cpu", lambda run: "NOT_SUPPORTED")
    assert found == {"status": "NOT_SUPPORTED", "ok": None}


OURS = """
========= Invalid __global__ write of size 16 bytes
=========     at void transcast::cuda::rows_kernel<float, true>(transcast::Args)+0x120 in cast.cu:88
=========     by thread (0,0,0) in block (1,0,0)
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: at::native::copy() [0x12ab] in libtorch_cpu.so
=========
"""
HAZARD = """
========= Error: Race reported between Write access at void transcast::cuda::sums_kernel(int)+0x50 in s.cu:7
=========     and Read access at void transcast::cuda::sums_kernel(int)+0x80 in sums.cu:9 [4 hazards]
=========
"""
THEIRS = """
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void cutlass::device_kernel<sm90>(Params)+0x70
=========     by thread (3,0,0) in block (0,0,0)
=========         Host Frame: transcast::cuda::run() in gemm_plan.cpp:205 [0x99] in /home/transcast/_cuda.so
=========
========= Program hit CUDA_ERROR_NOT_FOUND due to "not found" on CUDA API call to cuGetProcAddress.
=========     Saved host backtrace up to driver entry point at error
=========
"""
BANNER, NONE = "========= COMPUTE-SANITIZER\n", "========= ERROR SUMMARY: 0 errors\n"
SOME = "========= ERROR SUMMARY: 3 errors\n"
CUT = (
    SOME
    + "========= ERROR SUMMARY: 9 errors were not printed. Use --print-limit option to adjust the number\n"
)


@pytest.mark.parametrize(
    ("log", "clean", "ours", "others"),
    [
        (BANNER + NONE, True, 0, 0),
        (BANNER + OURS + THEIRS + SOME, False, 1, 2),
        (
            BANNER + HAZARD + "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)",
            False,
            1,
            0,
        ),
        (BANNER + THEIRS + SOME, True, 0, 2),
        (BANNER + THEIRS + CUT, False, 0, 2),  # ours may be among what was not printed
        (BANNER + "Killed", False, 0, 0),
    ],
)
def test_sanitizer_log(log, clean, ours, others):
    found = sanitize.found_in(log)
    assert (found.clean, len(found.ours), len(found.others)) == (clean, ours, others)
    assert found.summary is None or found.summary.split()[0] in "013"


def test_sanitizer_names_kernels():
    ours, others = sanitize.found_in(OURS + HAZARD + THEIRS).ours, sanitize.found_in(THEIRS).others
    kernels = [
        "transcast::cuda::rows_kernel<float, true>(transcast::Args)",
        "transcast::cuda::sums_kernel(int)",
    ]
    assert sanitize.kernel_names(ours) == kernels
    assert sanitize.kernel_names(others) == ["cutlass::device_kernel<sm90>(Params)"]


SANITIZER = """#!{python}
import subprocess, sys
start = sys.argv.index({python!r})
print("=========" " COMPUTE-SANITIZER", " ".join(sys.argv[1:start]))
code = subprocess.run(sys.argv[start:]).returncode
print({log!r})
sys.exit(code)
"""


def sanitized(monkeypatch, folder: Path, log: str, watched: str = "") -> tuple[bool | None, list[dict]]:
    tool = folder / "compute-sanitizer"
    tool.write_text(SANITIZER.format(python=sys.executable, log=log))
    tool.chmod(0o755)
    monkeypatch.setattr(sanitize, "PASS", [sys.executable, program(folder, "watched", watched)])
    verdict = sanitize.check(step_in(folder), str(tool), "racecheck", folder)
    return verdict, rows_of(folder / "rows.jsonl")


@pytest.mark.parametrize(
    ("log", "watched", "ok", "counts"),
    [
        (NONE, "", True, [0]),
        (OURS + SOME, "", False, [1]),
        (THEIRS + SOME, "", True, [0, 2]),
        (OURS + THEIRS + SOME, "", False, [1, 2]),
        (NONE, "raise SystemExit(1)", False, [0]),
        ("", "", False, [0]),
    ],
)
def test_sanitizers_verdict(monkeypatch, tmp_path, log, watched, ok, counts):
    verdict, rows = sanitized(monkeypatch, tmp_path, log, watched)
    assert verdict is ok and [row["problems"] for row in rows] == counts
    assert [row["ok"] for row in rows] == [ok, None][: len(rows)]
    text = (tmp_path / "sanitizer-racecheck.log").read_text()
    assert "--tool racecheck" in text and "--kernel-regex kns=transcast" in text


def test_sanitizer_that_does_not_know_the_device(monkeypatch, tmp_path):
    log = "========= Error: Device not supported. Please refer to the documentation\n" + NONE
    verdict, (row,) = sanitized(monkeypatch, tmp_path, log, "raise SystemExit(1)")
    assert verdict is None and row["ok"] is None and "Device not supported" in row["missing"]


class Gpu:
    """Stands for torch.cuda: work takes its time once the host has handed it over, in order."""

    def __init__(self) -> None:
        self.now = self.free_at = 0.0  # seconds: of the host; when the GPU is done with all it has

    def work(self, seconds: float, host: float = 0.0) -> None:
        self.now += host
        self.free_at = max(self.free_at, self.now) + seconds

    def _sleep(self, cycles: int) -> None:
        self.work(cycles / 2e9)

    def synchronize(self) -> None:
        self.now = self.free_at = max(self.now, self.free_at)

    def Event(self, enable_timing: bool):  # noqa: N802 torch's name
        gpu = self

        class Event:
            def record(self) -> None:
                self.at = max(gpu.free_at, gpu.now)

            def synchronize(self) -> None:
                gpu.synchronize()

            def elapsed_time(self, end) -> float:
                return 1e3 * (end.at - self.at)

        return Event()


class Flush:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def sum(self) -> None:
        self.gpu.work(100e-6, host=3e-6)


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()
    monkeypatch.setattr(clocks.torch, "cuda", gpu)
    monkeypatch.setattr(clocks.torch, "zeros", lambda *_, **__: Flush(gpu))
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: gpu.now)
    return gpu


@pytest.mark.parametrize(("device_us", "host_us"), [(50, 5), (5, 20)])
def test_clocks(gpu, device_us, host_us):
    def call() -> None:
        gpu.work(device_us * 1e-6, host_us * 1e-6)

    slower = max(device_us, host_us)
    assert clocks.eager(call, 1000) * 1e6 == pytest.approx(slower, rel=0.01)
    assert clocks.queued(call, 100) * 1e6 == pytest.approx(device_us)
    assert clocks.Cold()(call, 100) * 1e6 == pytest.approx(device_us)
    assert clocks.enqueuing(call, 100) * 1e6 == pytest.approx(host_us)


def test_results_of_the_suite(tmp_path):
    (tmp_path / "test_two.py").write_text("def test_a(): pass\n\n\ndef test_b(): assert 1 + 1 == 3\n")
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "-p", "no:cacheprovider"]
    subprocess.run([*command, str(tmp_path / "test_two.py")], capture_output=True, cwd=tmp_path, timeout=120)
    found = suite.results_of(report)
    assert (found["tests"], found["failures"], found["errors"]) == (2, 1, 0)
    assert found["failed"][0]["test"] == "test_b" and "1 + 1" in found["failed"][0]["message"]


def suite_rows(folder: Path, **files: str) -> list[dict]:
    """What the suite says of files of tests, asked to end once one of them has made the file "begun"."""
    made = suite.Suite(step_in(folder), folder)

    def stop() -> None:
        while not (folder / "begun").exists():
            time.sleep(0.05)
        made.stop()

    threading.Thread(target=stop, daemon=True).start()
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
        made.run("cpu", folder / f"{name}.py")
    return rows_of(folder / "rows.jsonl")


def test_a_suite_that_is_stopped_says_what_it_has(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", f"-p pytest_backend --rootdir {tmp_path}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "pytest_backend.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--backend')\n"
    )
    long = "import time\n\n\ndef test_a(): assert 1 + 1 == 2\n\n\ndef test_b():\n"
    long += f"    open({str(tmp_path / 'begun')!r}, 'w')\n    time.sleep(600)\n"
    ended, after = suite_rows(tmp_path, test_long=long, test_after="def test_c(): pass\n")
    assert (
        ended["ok"] is None
        and ended["tests"] >= 1
        and "out of time" in ended["error"]
        and ended["seconds"] < 500
    )
    assert after["ok"] is None and "not begun" in after["error"]
    for name in ("rows.jsonl", "begun"):
        (tmp_path / name).unlink()
    wrong = long.replace("== 2", "== 3")
    (ended,) = suite_rows(tmp_path, test_long=wrong)
    assert ended["ok"] is False and ended["failures"] == 1


def test_files_that_do_not_run_on_the_backend(tmp_path):
    theirs = tmp_path / "test_theirs.py"
    theirs.write_text("@pytest.fixture\ndef backend(emu): pass\n\n\ndef test_a(backend): pass\n")
    ours = tmp_path / "test_ours.py"
    ours.write_text("@pytest.fixture\ndef on(backend): pass\n\n\ndef test_a(\n    on, backend\n): pass\n")
    assert not suite.takes_backend(theirs) and suite.takes_backend(ours)


def test_files_of_the_ops_come_first():
    files = [path for path in Path(__file__).parent.glob("test_*.py") if suite.takes_backend(path)]
    names = [path.name for path in suite.in_order(files)]
    assert names[0] == "test_cast.py" and names.index("test_gemm.py") < names.index("test_linear.py")
    assert "test_compile.py" in names and "test_build.py" not in names
    assert not {"test_cuda_kernels.py", "test_cuda_launchers.py", "test_emu.py"} & set(names)


def test_smoke_checks_every_op():
    from cases import OUTPUTS

    backend = smoke.backend_of("cpu")
    names = {what.split()[0] for what, _ in smoke.checks(backend, small=True)}
    assert names == {*OUTPUTS, "FP8Linear"}


def test_smoke_sees_a_wrong_op(tmp_path):
    class Wrong:
        def __getattr__(self, name: str):
            def op(*args: object):
                results = getattr(torch.ops.transcast, name)(*args)
                return results + 1 if isinstance(results, torch.Tensor) else results

            return op

    step = step_in(tmp_path)
    smoke.run(step, smoke.Backend("emu", Wrong(), torch.device("cpu")), small=True)
    bad = {entry["op"].split()[1] for entry in rows_of(tmp_path / "rows.jsonl") if entry["ok"] is False}
    assert {"amax", "gemm"} <= bad and "cast" not in bad


def test_smoke_runs_every_kernel_of_the_gemm(emu):
    emu.count(True)
    for _, one in smoke_products.checks(smoke.backend_of("emu"), small=True):
        one()
    launched = {re.split(r"[<(]", launch["kernel"])[0].split("::")[-1] for launch in emu.launches()}
    kernels = {"pad_kernel", "bias_kernel", "arrange_kernel", "epilogue_kernel", "epilogue_fp8_kernel"}
    assert {*kernels, "finish_fp8_kernel"} <= launched


@pytest.mark.parametrize(("capability", "pairs"), [((9, 0), 4), ((8, 9), 1), ((10, 0), 1)])
def test_smoke_asks_for_blocks_where_they_are_taken(monkeypatch, capability, pairs):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    backend = smoke.Backend("cuda", torch.ops.transcast, torch.device("cuda"))
    assert len(smoke_products.scale_pairs(backend)) == pairs


def test_unaligned_operands_are_the_same_and_unaligned():
    x = torch.randn(33, 47).to(torch.float8_e4m3fn)
    other = smoke_products.unaligned(x)
    assert other.data_ptr() % 16 == 1 and torch.equal(other.view(torch.uint8), x.view(torch.uint8))


@pytest.mark.parametrize("chosen", [[], [0, 2], [0, -1, -1]])
def test_plans_without_an_algorithm_are_wrong(tmp_path, chosen):
    step = step_in(tmp_path)
    plans = [
        {
            "device": 0,
            "description": f"product {i}",
            "candidates": 3,
            "chosen": one,
            "workspace_bytes": 0,
            "calls": 1,
        }
        for i, one in enumerate(chosen)
    ]
    smoke.judge_plans(step, plans)
    rows = rows_of(tmp_path / "rows.jsonl")
    assert [row["ok"] for row in rows] == ([one >= 0 for one in chosen] or [False])
    assert step.failures == (chosen.count(-1) if chosen else 1)
    assert all("product" in row["error"] for row in rows if not row["ok"])


def stale(call):
    call()
    return lambda: None


def test_replays_are_compared_with_eager_mode():
    def check(how):
        capture.check_replay(torch.device("cpu"), (16, 32, 48), how)

    check(lambda call: call)
    with pytest.raises(AssertionError, match="equal those of eager mode"):
        check(stale)


def test_smoke_judges_graphs(monkeypatch, tmp_path):
    step = step_in(tmp_path)
    smoke.graphs(step)
    assert step.failures == 0
    ops = [row["op"] for row in rows_of(tmp_path / "rows.jsonl")]
    assert len(ops) == 3 and ops[-1] == "first product in a graph"
    monkeypatch.setattr(smoke, "ROOT", tmp_path)  # there is no such program
    smoke.graphs(step)
    assert step.failures == 1 and rows_of(tmp_path / "rows.jsonl")[-1]["ok"] is False


LT_NAMES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}
LT_SCALINGS = {"scalar": "tensor", "outer_vec": "row", "vec128": "1x128", "blk128x128": "128x128"}
LT_EPILOGUES = {"default": "none", "bias": "none", "dgelu": "dgelu"}


@pytest.mark.parametrize(("capability", "library"), [("9.0", 130000), ("9.0", 120600), ("8.9", 130000)])
def test_the_probe_judges_what_the_support_table_calls_native(emu, capability, library):
    """cuBLASLt's A is our b."""
    for query, _ in queries.ours():
        base = query.epi.replace("_bias", "").replace("_aux", "")
        epilogue = LT_EPILOGUES.get(base, {"relu": "relu", "gelu": "gelu_tanh"}.get(base))
        way = emu.gemm_support(
            LT_NAMES[query.b], LT_NAMES[query.a], epilogue, query.has_bias, query.has_aux,
            LT_NAMES[query.aux or "f32"], LT_NAMES[query.d], LT_SCALINGS[query.sb], LT_SCALINGS[query.sa],
            int(capability.replace(".", "")), library,
        )  # fmt: skip
        assert queries.native(query, capability, library) is (way == "native"), query


@pytest.mark.parametrize(
    ("own", "ok", "expected"),
    [
        (True, True, ("right", True)),
        (True, False, ("wrong", False)),
        (True, None, ("refused", False)),
        (False, False, ("recorded", None)),
        (False, None, ("recorded", None)),
    ],
)
def test_the_probe_judges_its_own_products(own, ok, expected):
    found = {"status": "SUCCESS", "ok": ok}
    assert (probe_cublaslt.judged(found, own), found["ok"]) == expected
    assert found["native"] is own and found["right"] is ok


def test_composite_has_the_gradients_of_linear():
    torch.manual_seed(0)
    layer = nn.Linear(64, 48)
    x, grad = torch.randn(32, 64, requires_grad=True), torch.randn(32, 48)
    expected = torch.autograd.grad(layer(x), [x, layer.weight, layer.bias], grad)
    y = composite.ScaledLinear.apply(x, layer.weight, layer.bias)
    for got, want in zip(torch.autograd.grad(y, [x, layer.weight, layer.bias], grad), expected, strict=True):
        assert (got - want).norm() < 0.1 * want.norm()
    assert (y - layer(x)).norm() < 0.1 * layer(x).norm()
