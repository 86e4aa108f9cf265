"""What every step of the check writes: JSON rows, one per line, each with the facts of the machine."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from timing import Timer, measure

if TYPE_CHECKING:
    import rows  # needs transcast, which a step that only asks the libraries does without

ROOT = Path(__file__).resolve().parents[2]
FACTS = "TRANSCAST_CHECK_FACTS"  # environment: the facts, found out once for all steps
NOT_AVAILABLE = 69  # exit code of a step whose tool this machine does not have (EX_UNAVAILABLE)


def output_of(*command: str) -> str:
    try:
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    found = output_of("git", "rev-parse", "--short=12", "HEAD")
    changed = " with changes" if found and output_of("git", "status", "--porcelain") else ""
    return found + changed if found else "unknown"


def sources() -> str:
    """A hash of what is measured, for trees that carry no git history."""
    digest = hashlib.sha256()
    for folder in ("csrc", "python/transcast"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in (".h", ".cpp", ".cu", ".cuh", ".py"):
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def find_facts(device: str) -> dict:
    facts = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}
    facts |= {"commit": commit(), "sources": sources(), "threads": torch.get_num_threads()}
    if device == "cpu":
        return {"device": f"CPU, {platform.machine()}", "driver": None, **facts}
    driver = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0]
    found = torch.cuda.get_device_properties(0)
    hardware = {"capability": f"{found.major}.{found.minor}", "multiprocessors": found.multi_processor_count}
    return {"device": found.name, "driver": driver or "unknown", **hardware, **facts}


@dataclass
class Step:
    """One step: where it runs, what it is spared, and the file that its rows go to."""

    name: str
    out: Path
    device: str
    quick: bool
    dry: bool
    failures: int = 0
    facts: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.facts = json.loads(os.environ.get(FACTS, "null")) or find_facts(self.device)

    @property
    def scope(self) -> str:
        return "dry" if self.dry else "quick" if self.quick else "full"

    @property
    def rounds(self) -> int:
        return {"dry": 1, "quick": 5, "full": 9}[self.scope]

    def row(self, **fields: object) -> None:
        """Appends a row. It is in the file when this returns: a step that is stopped keeps what it has."""
        entry = {"step": self.name, **fields, "scope": self.scope, **self.facts}
        with self.out.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        shown = {name: value for name, value in fields.items() if value is not None}
        print(" ".join(f"{name}={_short(value)}" for name, value in shown.items()), flush=True)

    def attempt(self, what: str, work: Callable[[], object]) -> None:
        """Runs ``work``; an error becomes a row of its own, and the step goes on with what comes next."""
        try:
            work()
        except Exception as error:
            self.failures += 1
            traceback.print_exc()
            self.row(op=what, ok=False, error=f"{type(error).__name__}: {str(error)[:600]}")

    def measure(
        self, what: str, build: Callable[[], rows.Row], timer: Timer, how: str, **fields: object
    ) -> None:
        """Builds a row on the step's device, times its contenders in turns and writes one line for each."""

        def work() -> None:
            with torch.device(self.device):
                row = build()
            self._timed(row, timer, how, **fields)  # outside: that context costs the host time in every call

        self.attempt(what, work)

    def _timed(self, row: rows.Row, timer: Timer, how: str, **fields: object) -> None:
        measure(row.contenders, self.rounds, timer)
        for one in row.contenders:
            entry = {"op": row.op, "shape": list(row.shape), "dtype": row.dtype, "contender": one.name}
            if one.us is None:
                self.row(**entry, us=None, missing=one.missing, how=how, **fields)
                continue
            work = row.ceiling_work if one is row.ceiling else row.work
            entry |= {
                "us": one.us,
                "rate": work / one.us / 1e3,
                "unit": row.unit,
                "samples": len(one.samples),
            }
            entry |= {"times_ours": one.us / row.ours.us}
            if one is not row.ceiling:
                entry["percent_of_ceiling"] = 100 * row.floor_us / one.us
            self.row(**entry, how=how, **fields)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("\n", " ")


def parser(description: str) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--out", type=Path, required=True, help="the file for the rows, appended to")
    options.add_argument("--name", required=True, help="of the step, in its rows")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    options.add_argument("--quick", action="store_true")
    options.add_argument("--dry", action="store_true", help="tiny sizes")
    return options


def step_of(options: argparse.Namespace) -> Step:
    return Step(options.name, options.out, options.device, options.quick, options.dry)
