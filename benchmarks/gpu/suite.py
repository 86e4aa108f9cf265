"""Runs the tests on one backend, file by file and several at once: the files of the ops first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import record
from record import ROOT, Step

FIRST = ["cast", "quantize", "amax", "gemm", "transpose", "dequantize", "act", "dact", "multi", "linear"]
DRY = [("cpu", "test_dequantize.py"), ("emu", "test_transpose.py")]
QUICK = ("test_cast", "test_quantize", "test_gemm")
AT_ONCE = 6
MOST_FAILURES = 20  # whose messages are kept, per file


def takes_backend(path: Path) -> bool:
    """Whether a test in the file runs on the backend under test; the others say nothing about it."""
    return re.search(r"^def test_\w+\([^)]*\bbackend\b", path.read_text(), re.M) is not None


def in_order(paths: list[Path]) -> list[Path]:
    def rank(path: Path) -> tuple[int, str]:
        places = [i for i, op in enumerate(FIRST) if path.stem.startswith(f"test_{op}")]
        return (places or [len(FIRST)])[0], path.name

    return sorted(paths, key=rank)


def results_of(report: Path) -> dict:
    """Counts and failures of a JUnit report."""
    suite = ElementTree.parse(report).getroot().find("testsuite")
    counts = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    failed = []
    for case in suite.iter("testcase"):
        for problem in (*case.iter("failure"), *case.iter("error")):
            message = problem.get("message") or problem.text or ""
            failed.append({"test": case.get("name"), "message": message[:400]})
    return {**counts, "failed": failed[:MOST_FAILURES]}


def run_file(step: Step, backend: str, path: Path, folder: Path) -> bool:
    report, started = folder / f"{backend}-{path.stem}.xml", time.monotonic()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--backend",
        backend,
        str(path),
    ]
    done = subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT, text=True, capture_output=True)
    entry = {"op": "tests", "backend": backend, "file": path.name, "ok": done.returncode == 0}
    if report.exists():
        entry |= results_of(report)
    if done.returncode not in (0, 1):  # no result of tests: pytest itself, or the process, broke down
        entry["error"] = f"exit code {done.returncode}: " + (done.stdout + done.stderr)[-600:]
    step.row(**entry, seconds=round(time.monotonic() - started, 1))
    return entry["ok"]


def main(argv: list[str] | None = None) -> None:
    step = record.step_of(record.parser(__doc__).parse_args(argv))
    tests = ROOT / "tests"
    if step.dry:
        jobs = [(backend, tests / name) for backend, name in DRY]
    else:
        files = [path for path in tests.glob("test_*.py") if takes_backend(path)]
        if step.quick:
            files = [path for path in files if path.stem.startswith(QUICK)]
        jobs = [(step.device, path) for path in in_order(files)]
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1 if step.dry else AT_ONCE) as pool:
        passed = list(pool.map(lambda job: run_file(step, *job, Path(folder)), jobs))
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
