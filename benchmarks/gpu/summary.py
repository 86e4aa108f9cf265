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
    status: str  # passed, failed, not available, out of time, not run
    seconds: float = 0.0
    why: str = ""


def parsed(line: str) -> dict | None:
    try:
        return json.loads(line)
    except ValueError:  # a step that runs or was stopped may leave a part of a line
        return None


def entries(folder: Path) -> list[dict]:
    """All rows: in the order of the steps, then those of no step of their own."""
    names = [step.name for step in STEPS]
    places = {name: place for place, name in enumerate(names)}
    paths = sorted(folder.glob("*.jsonl"), key=lambda path: (places.get(path.stem, len(names)), path.name))
    rows = (parsed(line) for path in paths for line in path.read_text().splitlines())
    return [row for row in rows if row]


def of(entries: list[dict], outcomes: list[Outcome], chosen: list[StepPlan], scope: str, facts: dict) -> dict:
    """``right`` if each chosen step that judges what is right has passed."""
    steps = {
        o.step.name: {"status": o.status, "seconds": round(o.seconds, 1), "why": o.why} for o in outcomes
    }
    fine = ("passed", "not available") if scope == "dry" else ("passed",)
    right = all(steps.get(s.name, {}).get("status") in fine for s in chosen if s.correctness)
    steps |= {s.name: {"status": "not reached"} for s in chosen if s.name not in steps}
    wrong = [entry for entry in entries if entry.get("ok") is False]
    found = {"right": right, "scope": scope, "steps": steps, "marks": verdicts(entries)}
    return {**found, "wrong": wrong, "facts": facts}


def show(found: dict) -> None:
    wrong, facts = found["wrong"], found["facts"]
    for entry in wrong[:SHOWN]:
        print("wrong:", described(entry))
    if len(wrong) > SHOWN:
        print(f"wrong: {len(wrong) - SHOWN} more in summary.json")
    for mark in found["marks"]:
        got = "-" if mark["got"] is None else f"{mark['got']:.2f}"
        wanted = f"against {mark['against']:<12} >= {mark['wanted']:.2f}"
        print(f"{mark['mark']:<36} {wanted}  {got:>5}  {mark['verdict']}")
    label = ", a dry run: its timings mean nothing" if found["scope"] == "dry" else ""
    print(f"{'right' if found['right'] else 'NOT right'}: {facts['device']}, torch {facts['torch']}{label}")


def described(entry: dict) -> str:
    what = entry.get("file") or entry.get("query") or ""
    why = entry.get("error") or [failed["test"] for failed in entry.get("failed", []) if failed]
    return f"{entry['step']}: {entry.get('op')} {what} {str(why or entry.get('summary') or '')[:300]}"
