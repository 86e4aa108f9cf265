"""Runs the steps of the GPU check, each in processes of its own and within its time: see ../gpu_check.sh."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import record
import summary
import torch
from steps import STEPS, StepPlan
from summary import Outcome

LIMITS = {"full": 470, "quick": 120, "dry": 600}  # seconds for all steps together
LEAST = 5  # seconds below which a step is not begun
GRACE = 8  # seconds in which a step that is asked to end may write down what it has


def stop(process: subprocess.Popen) -> None:
    """Ends a step and all that it has started: it leads a process group of its own."""
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def put(path: Path, write: Callable[[Path], object]) -> None:
    """A file that is whole at any time, also if this process is killed while it writes."""
    part = path.with_name(f".{path.name}")
    write(part)
    part.replace(path)


class Check:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out = options, options.outdir
        self.chosen = chosen(options)
        self.device = "cpu" if options.dry else "cuda"
        self.scope = "dry" if options.dry else "quick" if options.quick else "full"
        self.deadline = time.monotonic() + (options.limit or LIMITS[self.scope])
        self.outcomes: list[Outcome] = []
        self.facts = record.find_facts(self.device)
        self.env = {**os.environ, record.FACTS: json.dumps(self.facts)}
        if options.dry:  # a machine whose processors others may need, too
            self.env |= {"OMP_NUM_THREADS": "1", "MAX_JOBS": "2"}

    def why_not(self, step: StepPlan) -> str:
        bad = [o.step.name for o in self.outcomes if o.step.name in step.needs and o.status != "passed"]
        if bad:
            return f"needs {', '.join(bad)}"
        left = self.deadline - time.monotonic()
        return "no time is left" if left < LEAST else ""

    def start(self, step: StepPlan) -> subprocess.Popen:
        rows, options = self.work / f"{step.name}.jsonl", self.options
        command = step.command(rows, self.device, options.quick, options.dry)
        with rows.with_suffix(".log").open("w") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=self.env, start_new_session=True)

    def run_stage(self, steps: list[StepPlan]) -> None:
        running = {}
        for step in steps:
            why = self.why_not(step)
            if why:
                self.note(Outcome(step, "not run", why=why))
            else:
                running[step.name] = step, self.start(step), time.monotonic()
        try:
            while running:
                for name, (step, process, began) in list(running.items()):
                    outcome = self.outcome_of(step, process, began)
                    if outcome:
                        del running[name]
                        self.note(outcome)
                time.sleep(0.1)
        finally:
            for _, process, _ in running.values():
                stop(process)

    def outcome_of(self, step: StepPlan, process: subprocess.Popen, began: float) -> Outcome | None:
        now = time.monotonic()
        code = process.poll()
        if code is None and now < min(self.deadline, began + step.seconds * (4 if self.options.dry else 1)):
            return None
        if code is None:
            stop(process)
            return Outcome(step, "out of time", now - began, "its rows up to then count")
        if code == record.NOT_AVAILABLE:
            return Outcome(step, "not available", now - began, "this machine lacks a tool: see its rows")
        return Outcome(step, "failed" if code else "passed", now - began, f"exit code {code}" if code else "")

    def note(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        step, seconds = outcome.step, round(outcome.seconds, 1)
        entry = {"step": step.name, "op": "step", "status": outcome.status, "why": outcome.why}
        with (self.work / "check.jsonl").open("a") as file:
            file.write(json.dumps({**entry, "seconds": seconds, "scope": self.scope, **self.facts}) + "\n")
        self.publish()
        print(f"{step.name:<11} {outcome.status:<12} {seconds:>6} s  {outcome.why}".rstrip(), flush=True)

    def run(self) -> bool:
        """Whether all that was to be right is."""
        with tempfile.TemporaryDirectory(prefix="gpu_check-") as folder:
            self.work = Path(folder)
            try:
                for stage in sorted({step.stage for step in self.chosen}):
                    self.run_stage([step for step in self.chosen if step.stage == stage])
            finally:
                found = self.publish()
                summary.show(found)
        return found["right"]

    def publish(self) -> dict:
        """Brings the three files in OUTDIR up to date: they stay, should this process be killed."""
        entries = summary.entries(self.work)
        found = summary.of(entries, self.outcomes, self.chosen, self.scope, self.facts)
        lines = "".join(json.dumps(entry) + "\n" for entry in entries)
        put(self.out / "rows.jsonl", lambda path: path.write_text(lines))
        put(self.out / "summary.json", lambda path: path.write_text(json.dumps(found, indent=1) + "\n"))
        put(self.out / "logs.tar.gz", self.pack_logs)
        return found

    def pack_logs(self, path: Path) -> None:
        with tarfile.open(path, "w:gz") as archive:
            for log in sorted(self.work.glob("*.log")):
                archive.add(log, f"logs/{log.name}")


def chosen(options: argparse.Namespace) -> list[StepPlan]:
    if options.only:
        return [step for step in STEPS if step.name in options.only]
    return [step for step in STEPS if step.in_quick or not options.quick]


def unpacked(path: Path) -> Path:
    """A folder to import from: of a wheel its content, because torch.compile wants to read sources."""
    if path.suffix != ".whl":
        return path
    folder = Path(tempfile.mkdtemp(prefix="wheel-"))
    zipfile.ZipFile(path).extractall(folder)
    return folder


def arguments(argv: list[str] | None) -> argparse.Namespace:
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description=__doc__)
    parser.add_argument("outdir", type=Path, help="a folder for rows, logs and the summary")
    parser.add_argument(
        "--quick", action="store_true", help="two minutes: no sanitizers, the first benchmarks only"
    )
    parser.add_argument(
        "--dry", action="store_true", help="all steps at tiny sizes, on the CPU and the emulator"
    )
    parser.add_argument(
        "--only", type=lambda text: text.split(","), help=f"some of the steps {', '.join(names)}"
    )
    parser.add_argument("--torchao", type=Path, metavar="PATH", help="a folder or wheel that holds torchao")
    parser.add_argument(
        "--limit", type=int, metavar="SECONDS", help=f"for all steps together, default {LIMITS}"
    )
    options = parser.parse_args(argv)
    unknown = set(options.only or []) - set(names)
    if unknown:
        parser.error(f"--only: there is no step {', '.join(sorted(unknown))}; steps are {', '.join(names)}")
    if options.torchao and not options.torchao.exists():
        parser.error(f"--torchao {options.torchao}: it is not there")
    if options.outdir.exists() and any(options.outdir.glob("*.jsonl")):
        parser.error(f"{options.outdir} has results already; name another folder")
    if not options.dry and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; --dry goes through all steps without one")
    return options


def main(argv: list[str] | None = None) -> None:
    options = arguments(argv)
    options.outdir.mkdir(parents=True, exist_ok=True)
    options.outdir = options.outdir.resolve()
    if options.torchao:
        paths = [str(unpacked(options.torchao.resolve())), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    # A signal ends the steps as an error does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(0 if Check(options).run() else 1)


if __name__ == "__main__":
    main()
