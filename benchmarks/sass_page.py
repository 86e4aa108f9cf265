"""The readable page of the table of static facts."""

from __future__ import annotations

from collections.abc import Callable

INTRODUCTION = """\
# Machine code of the CUDA kernels

Written by `python benchmarks/sass.py --write` from a library that nvcc {nvcc} built for {archs}.
`sass.json` beside this page has every figure by itself;
[README.md](../README.md#static-facts-of-the-cuda-kernels) says what the columns mean.

Most registers: {registers}. Spills: {spills}.
Figures with slashes are for {archs}, in this order; one figure stands for all of them.
"""
HEAD = [
    "kernel",
    "threads",
    "shared",
    "registers",
    "occupancy %",
    "loads",
    "stores",
    "in flight",
    "instructions / element",
]


def page(table: dict) -> str:
    by_kernel: dict[str, list[dict]] = {}
    for row in table["rows"]:
        by_kernel.setdefault(row["kernel"], []).append(row)
    most = max(table["rows"], key=lambda row: row["registers"])
    spilling = sorted({row["kernel"] for row in table["rows"] if row["stack"] or row["local"]})
    text = INTRODUCTION.format(
        nvcc=table["nvcc"],
        archs=", ".join(table["archs"]),
        registers=f"{most['registers']} ({most['kernel']}, {most['arch']})",
        spills=", ".join(spilling) or "none",
    )
    lines = [_line(HEAD), _line(["---"] * len(HEAD))]
    lines += [_line(_cells(kernel, rows)) for kernel, rows in by_kernel.items()]
    return text + "\n" + "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(kernel: str, rows: list[dict]) -> list[str]:
    def each(value: Callable[[dict], object]) -> str:
        values = [str(value(row)) for row in rows]
        return values[0] if len(set(values)) == 1 else " / ".join(values)

    def on_main_path(value: Callable[[dict], object]) -> str:
        return each(lambda row: value(row["main"]) if row["main"]["instructions"] else "–")

    return [
        f"`{kernel}`",
        each(lambda row: ", ".join(map(str, row["threads"]))),
        each(lambda row: row["shared"]),
        each(lambda row: row["registers"]),
        each(lambda row: ", ".join(f"{100 * part:.0f}" for part in row["occupancy"])),
        on_main_path(lambda main: _accesses(main["loads"])),
        on_main_path(lambda main: _accesses(main["stores"])),
        on_main_path(lambda main: main["in_flight"]),
        on_main_path(lambda main: main["per_element"]),
    ]


def _accesses(counts: dict[str, int]) -> str:
    """{"32": 1, "128": 8} as 8×16 + 1×4 bytes."""
    return (
        " + ".join(f"{counts[bits]}×{int(bits) // 8}" for bits in sorted(counts, key=int, reverse=True))
        or "none"
    )
