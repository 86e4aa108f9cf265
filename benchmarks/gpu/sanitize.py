"""The small pass of smoke.py under compute-sanitizer: memcheck, racecheck and initcheck, side by side."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import record
from record import ROOT, Step

TOOLS = ("memcheck", "racecheck", "initcheck")
PASS = [sys.executable, str(ROOT / "benchmarks/gpu/smoke.py"), "--small"]
OURS = "transcast"  # in the name of each of our kernels
MOST_ERRORS = 2000  # that a log describes
# Racecheck slows kernels down so much that others' are left out. Memcheck and initcheck have to see all:
# memory that another kernel has filled is initialized.
ONLY_OURS = {"racecheck": ["--kernel-regex", f"kns={OURS}"]}


def find() -> str | None:
    homes = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    places = os.pathsep.join([os.environ.get("PATH", ""), *(f"{home}/bin" for home in homes)])
    return shutil.which("compute-sanitizer", path=places)


def errors_in(log: str) -> list[str]:
    """Each error that a log describes: a heading, and the indented lines below it."""
    found: list[list[str]] = []
    for line in re.findall(r"^=========(.*)", log, re.M):
        if re.match(r" (?! |$)", line):
            found.append([line])
        elif found:
            found[-1].append(line)
    about_itself = r" (COMPUTE-SANITIZER|\w+ SUMMARY|Target application)"
    return ["\n".join(lines) for lines in found if not re.match(about_itself, lines[0])]


def kernels_of(error: str) -> str:
    """What an error says of kernels: what the host did names its libraries only."""
    return "\n".join(line for line in error.splitlines() if "Host Frame" not in line)


def kernel_names(errors: list[str]) -> list[str]:
    return sorted(set(re.findall(r"\bat (?:void )?(\S.*?)\+0x", "\n".join(map(kernels_of, errors)))))


@dataclass
class Found:
    """What a log reports. It tells nothing unless it has a summary and describes each error."""

    ours: list[str]
    others: list[str]
    summary: str | None
    hidden: bool
    unusable: bool  # the tool does not work with this driver or virtual machine

    @property
    def clean(self) -> bool:
        return self.summary is not None and not (self.ours or self.hidden)


def found_in(log: str) -> Found:
    errors = errors_in(log)
    ours = [error for error in errors if OURS in kernels_of(error)]
    others = [error for error in errors if OURS not in kernels_of(error)]
    summaries = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", log)
    hidden = any("not printed" in line for line in summaries)
    return Found(ours, others, summaries[0] if summaries else None, hidden, "Device not supported" in log)


def row_of_others(step: Step, tool: str, errors: list[str]) -> None:
    """Errors in kernels of libraries say nothing about ours: they are kept, and do not judge."""
    if errors:
        extract = "\n".join(errors)[:3000]
        names = kernel_names(errors)
        step.row(op=f"{tool}, others", ok=None, problems=len(errors), kernels=names, extract=extract)


def check(step: Step, sanitizer: str, tool: str, folder: Path) -> bool | None:
    """Whether our kernels are fine; None where the tool does not work on this machine."""
    started, log_file = time.monotonic(), folder / f"sanitizer-{tool}.log"
    rows = folder / f"sanitizer-{tool}.jsonl"
    inner = ["--name", f"under {tool}", "--out", str(rows), "--device", step.device]
    # Freed memory goes back to CUDA, and allocations end where tensors end: overruns are seen.
    env = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = [sanitizer, "--tool", tool, "--print-limit", str(MOST_ERRORS), *ONLY_OURS.get(tool, [])]
    with log_file.open("w") as log:
        done = subprocess.run([*command, *PASS, *inner], stdout=log, stderr=log, env=env)
    text = log_file.read_text(errors="replace")
    found = found_in(text)
    seconds = round(time.monotonic() - started, 1)
    if found.unusable:
        step.row(op=tool, ok=None, missing="compute-sanitizer: Device not supported", seconds=seconds)
        return None
    ok = done.returncode == 0 and found.clean  # without errors of its own, the tool exits as the pass does
    extract = None if ok else ("\n".join(found.ours) or text[-3000:])[:3000]
    counts = {"problems": len(found.ours), "kernels": kernel_names(found.ours), "summary": found.summary}
    step.row(op=tool, ok=ok, exit_code=done.returncode, **counts, extract=extract, seconds=seconds)
    row_of_others(step, tool, found.others)
    return ok


def without_a_sanitizer(step: Step, why: str) -> None:
    """A dry run goes through the small pass itself."""
    for tool in TOOLS:
        step.row(op=tool, ok=None, missing=why)
    if step.dry:
        inner = ["--name", "dry", "--out", str(step.out.parent / "sanitizer-dry.jsonl"), "--device", "cpu"]
        subprocess.run([*PASS, *inner], check=True)
    sys.exit(record.NOT_AVAILABLE)


def main(argv: list[str] | None = None) -> None:
    step = record.step_of(record.parser(__doc__).parse_args(argv))
    folder, sanitizer = step.out.parent, find()
    if step.device == "cpu":
        without_a_sanitizer(step, "a dry run has no GPU")
    if sanitizer is None:
        without_a_sanitizer(step, "compute-sanitizer is not there")
    with ThreadPoolExecutor(len(TOOLS)) as pool:
        verdicts = list(pool.map(lambda tool: check(step, sanitizer, tool, folder), TOOLS))
    if False in verdicts:
        sys.exit(1)
    sys.exit(record.NOT_AVAILABLE if None in verdicts else 0)


if __name__ == "__main__":
    main()
