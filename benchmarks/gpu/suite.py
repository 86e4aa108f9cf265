"""Runs the tests on one backend, file by file and several at once: the files of the ops first."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import record
from record import ROOT, Step

# A shell's background jobs ignore SIGINT, and so do their children unless they say otherwise.
PYTEST = (
    "import signal, sys, pytest; signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(pytest.main())"
)

FIRST = ["cast", "quantize", "amax", "gemm", "transpose", "dequantize", "act", "dact", "multi", "linear"]
DRY = [("cpu", "test_dequantize.py"), ("emu", "test_transpose.py")]
QUICK = ("test_cast", "test_quantize", "test_gemm")
AT_ONCE = 6
MOST_FAILURES = 20  # whose messages are kept, per file


def takes_backend(path: Path) -> bool:
    """Whether a test in the file runs on the backend under test; the others say nothing about it.

    A file may have a fixture of that name for itself: the emulator.
    """
    text = path.read_text()
    if re.search(r"^def backend\(", text, re.M):
        return False
    return re.search(r"^def test_\w+\([^)]*\bbackend\b", text, re.M) is not None


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


class Suite:
    """Files of tests, each in a pytest of its own.

    Once ``stop`` is called, none is begun, and those that run end early: pytest still reports what it has.
    """

    def __init__(self, step: Step, folder: Path) -> None:
        self.step, self.folder = step, folder
        self.running: set[subprocess.Popen] = set()
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True
        for process in list(self.running):
            process.send_signal(signal.SIGINT)

    def run(self, backend: str, path: Path) -> bool:
        entry = {"op": "tests", "backend": backend, "file": path.name}
        if self.stopped:
            self.step.row(**entry, ok=None, error="not begun: out of time")
            return False
        report, started = self.folder / f"{backend}-{path.stem}.xml", time.monotonic()
        command = [sys.executable, "-c", PYTEST, "-q", "-p", "no:cacheprovider"]
        command += ["--backend", backend, str(path), f"--junitxml={report}"]
        code, output = self._output_of(command)
        if report.exists():
            entry |= results_of(report)
        if self.stopped and code not in (0, 1):
            entry["ok"] = False if entry.get("failed") else None
            entry["error"] = "ended early: out of time"
        elif code not in (0, 1):  # no result of tests: pytest itself, or the process, broke down
            entry["error"] = f"exit code {code}: {output[-600:]}"
        self.step.row(**{"ok": code == 0, **entry}, seconds=round(time.monotonic() - started, 1))
        return code == 0

    def _output_of(self, command: list[str]) -> tuple[int, str]:
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(command, cwd=ROOT, text=True, **pipe) as process:
            self.running.add(process)
            if self.stopped:  # between the question above and here
                process.send_signal(signal.SIGINT)
            output, _ = process.communicate()
            self.running.remove(process)
        return process.returncode, output


def main(argv: list[str] | None = None) -> None:
    step = record.step_of(record.parser(__doc__).parse_args(argv))
    tests = ROOT / "tests"
    if step.dry:
        jobs = [(backend, tests / name) for backend, name in DRY]
    else:
        paths = [path for path in tests.glob("test_*.py") if takes_backend(path)]
        if step.quick:
            paths = [path for path in paths if path.stem.startswith(QUICK)]
        jobs = [(step.device, path) for path in in_order(paths)]
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1 if step.dry else AT_ONCE) as pool:
        suite = Suite(step, Path(folder))
        signal.signal(signal.SIGTERM, lambda *_: suite.stop())
        passed = list(pool.map(lambda job: suite.run(*job), jobs))
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
