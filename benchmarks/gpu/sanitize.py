"""The small pass of smoke.py under compute-sanitizer: memcheck, racecheck and initcheck, side by side."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import record
from record import ROOT, Step

TOOLS = ("memcheck", "racecheck", "initcheck")
PASS = [sys.executable, str(ROOT / "benchmarks/gpu/smoke.py"), "--small"]
OURS = "transcast"  # in the name of each of our kernels
FOUND = 77
# Racecheck slows kernels down so much that others' are left out. Memcheck and initcheck have to see all:
# memory that another kernel has filled is initialized.
ONLY_OURS = {"racecheck": ["--kernel-regex", f"kns={OURS}"]}


def find() -> str | None:
    homes = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    places = os.pathsep.join([os.environ.get("PATH", ""), *(f"{home}/bin" for home in homes)])
    return shutil.which("compute-sanitizer", path=places)


def problems(log: str) -> dict:
    """What a log reports: its own count, and the kernels that are named by its errors."""
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", log)
    count = re.search(r"\d+", summary[-1]) if summary else None
    kernels = sorted(set(re.findall(r"^=========\s+at (?:void )?(.+)\+0x", log, re.M)))
    number = int(count[0]) if count else None
    return {"summary": summary[-1] if summary else None, "problems": number, "kernels": kernels}


def check(step: Step, sanitizer: str, tool: str, folder: Path) -> bool:
    started, log_file = time.monotonic(), folder / f"sanitizer-{tool}.log"
    inner = [
        "--name",
        f"under {tool}",
        "--out",
        str(folder / f"sanitizer-{tool}.jsonl"),
        "--device",
        step.device,
    ]
    # Freed memory goes back to CUDA, and allocations end where tensors end: overruns are seen.
    env = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20"]
    with log_file.open("w") as log:
        done = subprocess.run(
            [*command, *ONLY_OURS.get(tool, []), *PASS, *inner], stdout=log, stderr=log, env=env
        )
    found = problems(log_file.read_text(errors="replace"))
    ok = done.returncode == 0 and found["problems"] == 0
    lines = [
        line for line in log_file.read_text(errors="replace").splitlines() if line.startswith("=========")
    ]
    extract = None if ok else "\n".join(lines[:40])[:3000]
    seconds = round(time.monotonic() - started, 1)
    step.row(op=tool, ok=ok, exit_code=done.returncode, **found, extract=extract, seconds=seconds)
    return ok


def main(argv: list[str] | None = None) -> None:
    step = record.step_of(record.parser(__doc__).parse_args(argv))
    folder, sanitizer = step.out.parent, find()
    if step.device == "cpu" or sanitizer is None:
        why = "a dry run has no GPU" if step.device == "cpu" else "compute-sanitizer is not there"
        for tool in TOOLS:
            step.row(op=tool, ok=None, missing=why)
        if step.dry:
            inner = ["--name", "dry", "--out", str(folder / "sanitizer-dry.jsonl"), "--device", "cpu"]
            subprocess.run([*PASS, *inner], check=True)
        return
    with ThreadPoolExecutor(len(TOOLS)) as pool:
        passed = list(pool.map(lambda tool: check(step, sanitizer, tool, folder), TOOLS))
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
