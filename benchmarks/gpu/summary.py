"""What the rows of all steps come to: summary.json, and the same in a few lines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from steps import STEPS, StepPlan
from targets import verdicts

SHOWN = 20  # of what is wrong


@dataclass
class Outcome:
    step: StepPlan
    status: str  # passed, failed, out of time, not run
    seconds: float = 0.0
    why: str = ""


def entries(folder: Path) -> list[dict]:
    paths = [folder / f"{step.name}.jsonl" for step in STEPS]
    lines = [line for path in paths if path.exists() for line in path.read_text().splitlines()]
    return [
        json.loads(line) for line in lines if line.endswith("}")
    ]  # a step that was stopped may leave a part


def write(folder: Path, outcomes: list[Outcome], scope: str, facts: dict) -> bool:
    """Writes and prints the summary. True if each step that judges what is right has passed."""
    found = entries(folder)
    wrong, marks = [entry for entry in found if entry.get("ok") is False], verdicts(found)
    right = all(outcome.status == "passed" for outcome in outcomes if outcome.step.correctness)
    steps = {
        o.step.name: {"status": o.status, "seconds": round(o.seconds, 1), "why": o.why} for o in outcomes
    }
    whole = {"right": right, "scope": scope, "steps": steps, "marks": marks, "wrong": wrong, "facts": facts}
    (folder / "summary.json").write_text(json.dumps(whole, indent=1) + "\n")
    for entry in wrong[:SHOWN]:
        print("wrong:", described(entry))
    if len(wrong) > SHOWN:
        print(f"wrong: {len(wrong) - SHOWN} more in {folder / 'summary.json'}")
    for mark in marks:
        got = "-" if mark["got"] is None else f"{mark['got']:.2f}"
        wanted = f"against {mark['against']:<12} >= {mark['wanted']:.2f}"
        print(f"{mark['mark']:<36} {wanted}  {got:>5}  {mark['verdict']}")
    label = ", a dry run: its timings mean nothing" if scope == "dry" else ""
    print(f"{'right' if right else 'NOT right'}: {facts['device']}, torch {facts['torch']}{label}")
    return right


def described(entry: dict) -> str:
    what = entry.get("file") or entry.get("query") or ""
    why = entry.get("error") or [failed["test"] for failed in entry.get("failed", []) if failed]
    return f"{entry['step']}: {entry.get('op')} {what} {str(why or entry.get('summary') or '')[:300]}"
