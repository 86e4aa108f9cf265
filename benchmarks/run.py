"""Benchmarks transcast against plain torch, torch.compile and torchao: see README.md beside this file."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests"))

import torch  # noqa: E402

try:
    import transcast as tc
except ImportError as error:
    sys.exit(f"benchmarks: {error}")

import cases  # noqa: E402
import install  # noqa: E402
import marks  # noqa: E402
import rows  # noqa: E402
from timing import measure  # noqa: E402

ROUNDS = 15
# Lower the paths that torch, its libraries and transcast take on this machine: a result says so.
LIMITS = (
    "ATEN_CPU_CAPABILITY",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "TORCHINDUCTOR_CPP_MARCH",
    "TRANSCAST_CPU_ISA",
)
COLUMNS = "{:<19} {:<15} {:<5} {:>10} {:>8} {:<8} {:>5} {:>10}   {:<15} {:>10} {:>7}"
HEAD = COLUMNS.format(
    "row", "shape", "dtype", "ours us", "rate", "", "of", "floor us", "peer", "peer us", "ratio"
)


def machine() -> dict:
    """What a figure depends on; part of every row of the JSON file."""
    features = {feature.name: feature.note for feature in tc.info().features}
    return {
        "isa": features["ops on the CPU"].removesuffix(" path"),
        "torch_isa": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "limits": {name: os.environ[name] for name in LIMITS if name in os.environ},
    }


def selected(pattern: str | None, only_marked: bool) -> list[dict]:
    """Rows whose op is ``pattern``; if there are none, rows whose label contains it (*, ? allowed)."""
    known = cases.BENCHMARKS
    if only_marked:
        marked = {(mark.op, mark.shape, mark.dtype) for mark in marks.MARKS}
        known = [row for row in known if (row["op"], row["shape"], row["dtype"]) in marked]
    if pattern is None:
        return known
    exact = [row for row in known if row["op"] == pattern]
    found = exact or [row for row in known if fnmatch(marks.row_label(**row), f"*{pattern}*")]
    if not found:
        names = ", ".join(dict.fromkeys(row["op"] for row in known))
        sys.exit(
            f"benchmarks: --only {pattern!r} matches no row; rows are 'op shape dtype' with the ops {names}"
        )
    return found


def results(row: rows.Row, facts: dict) -> list[dict]:
    """One entry for each peer; a peer that is missing has the name None and the reason why."""
    entries = []
    for peer in row.peers:
        entries.append(
            {
                "op": row.op,
                "backend": "cpu",
                "shape": list(row.shape),
                "dtype": row.dtype,
                "ours_us": row.ours.us,
                "peer": None if peer.us is None else peer.name,
                "peer_us": peer.us,
                "ratio": None if peer.us is None else peer.us / row.ours.us,
                "floor_us": row.floor_us,
                "rate": row.rate,
                "unit": row.unit,
                "percent_of_ceiling": 100 * row.floor_us / row.ours.us,
                "ceiling": row.ceiling.name,
                "ceiling_us": row.ceiling.us,
                **({"missing": f"{peer.name}: {peer.missing}"} if peer.us is None else {}),
                **({"note": peer.note} if peer.note else {}),
                **facts,
            }
        )
    return entries


def show(row: rows.Row) -> None:
    shape = "x".join(map(str, row.shape))
    percent = f"{100 * row.floor_us / row.ours.us:.0f}%"
    times = [f"{row.ours.us:.1f}", f"{row.rate:.1f}", row.unit, percent, f"{row.floor_us:.1f}"]
    ours = [row.op, shape, row.dtype, *times]
    for peer in row.peers:
        theirs = ["missing", ""] if peer.us is None else [f"{peer.us:.1f}", f"{peer.us / row.ours.us:.2f}"]
        line = COLUMNS.format(*ours, peer.name, *theirs) + f"  {peer.missing or peer.note}"
        print(line.rstrip(), flush=True)
        ours = [""] * len(ours)


def verdict(met: bool | None, stretch: bool = False) -> str:
    return {True: "met", False: "not met", None: "not measured"}[met] + (" (stretch)" if stretch else "")


def show_marks(entries: list[dict]) -> None:
    measured = {(e["op"], tuple(e["shape"]), e["dtype"], e["peer"]): e["ratio"] for e in entries}
    line = "{:<38} {:<17} {:>7} {:>9}   {}"
    print("\n" + line.format("mark", "peer", "ratio", "measured", "").rstrip())
    for mark in marks.MARKS:
        ratio = measured.get((mark.op, mark.shape, mark.dtype, mark.peer))
        shown = "-" if ratio is None else f"{ratio:.2f}"
        outcome = verdict(None if ratio is None else ratio >= mark.ratio, mark.stretch)
        print(line.format(mark.label, mark.peer, f">={mark.ratio:.2f}", shown, outcome))
    for name, limit, measured_seconds in (
        ("clean CPU build", marks.BUILD_S, install.build_seconds),
        ("import, over torch's", marks.IMPORT_S, install.import_seconds),
    ):
        try:
            seconds = measured_seconds()
        except (OSError, subprocess.SubprocessError) as error:
            print(line.format(name, "", f"<={limit:g} s", "-", f"{verdict(None)}: {error}"), flush=True)
        else:
            outcome = verdict(seconds <= limit)
            print(line.format(name, "", f"<={limit:g} s", f"{seconds:.2f} s", outcome), flush=True)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="PATTERN", help="an op, or part of 'op shape dtype' with * and ?")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows to FILE")
    parser.add_argument(
        "--marks", action="store_true", help="run the rows that have a mark; say which are met"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {options.rounds}")
    if options.json and not options.json.parent.is_dir():
        parser.error(f"--json {options.json}: there is no folder {options.json.parent}")
    return options


def main(argv: list[str] | None = None) -> None:
    options = arguments(argv)
    chosen = selected(options.only, options.marks)
    facts = machine()
    print(", ".join(f"{name} {value}" for name, value in facts.items() if value))
    print(HEAD, flush=True)
    entries: list[dict] = []
    for case in chosen:
        row = rows.build(**case)
        measure(row.contenders, options.rounds)
        show(row)
        entries += results(row, facts)
        if options.json:  # after each row: a run that is interrupted keeps what it measured
            options.json.write_text(json.dumps(entries, indent=1) + "\n")
    if options.marks:
        show_marks(entries)


if __name__ == "__main__":
    main()
