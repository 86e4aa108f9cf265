"""The readable page of the traffic table."""

from __future__ import annotations

from collections import Counter

from traffic_rules import (
    ALIGNED,
    ALIGNED_TRANSPOSING,
    EXCUSED,
    RAGGED,
    WAVEFRONTS,
    is_aligned,
    ratio,
    shape_of,
)

INTRODUCTION = f"""\
# What the CUDA kernels move

Written by `python benchmarks/traffic.py --write`: the kernels of `csrc/cuda` on the emulator of `tests/emu`,
with 4 multiprocessors, so that small matrices get the tiles of large ones. `traffic.json` beside this page
has every launch; [README.md](../README.md#traffic-of-the-cuda-kernels) says what the columns mean.

Limits: {ALIGNED:.2f} times the sectors that an op has to move where both sides are multiples of 16,
{ALIGNED_TRANSPOSING:.2f} if it transposes; {RAGGED:.2f} for ragged shapes;
{WAVEFRONTS:.2f} times the wavefronts without bank conflicts.
"""
# Of the shapes whose sides are multiples of 16, then of the ragged ones.
COLUMNS = ["op", "dtype", "launches", "sectors, aligned", "ragged", "wavefronts"]
WIDTHS = ["op", "dtype", "aligned: read", "written", "ragged: read", "written"]


def line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)]) + "\n"


def widths(rows: list[dict], way: str) -> str:
    """Share of the instructions by width, without the scalars that a whole warp reads."""
    counts: Counter[int] = Counter()
    for row in rows:
        for one in row["launches"]:
            counts.update({int(width): count for width, count in one[way]["widths"].items()})
            counts[4] -= one[way]["uniform"]
    total = sum(counts.values())
    shares = {width: round(100 * count / total) for width, count in sorted(counts.items(), reverse=True)}
    return ", ".join(f"{width}: {share}%" for width, share in shares.items() if share) or "none"


def worst_wavefronts(rows: list[dict]) -> str:
    pairs = [one[way] for row in rows for one in row["launches"] for way in ("read", "written")]
    ratios = [traffic["wavefronts"] / least for traffic in pairs if (least := traffic["wavefronts_minimum"])]
    return f"{max(ratios):.3f}" if ratios else "none"


def halves(rows: list[dict]) -> tuple[list[dict], list[dict]]:
    """Those of aligned shapes, those of ragged ones."""
    rows = [row for row in rows if shape_of(row) not in EXCUSED]
    return [row for row in rows if is_aligned(row)], [row for row in rows if not is_aligned(row)]


def summary(rows: list[dict]) -> list[str]:
    return [
        rows[0]["op"],
        rows[0]["dtype"],
        str(max(len(row["launches"]) for row in rows)),
        *(f"{max(map(ratio, some)):.3f}" for some in halves(rows)),
        worst_wavefronts(rows),
    ]


def all_widths(rows: list[dict]) -> list[str]:
    cells = [widths(some, way) for some in halves(rows) for way in ("read", "written")]
    return [rows[0]["op"], rows[0]["dtype"], *cells]


def page(rows: list[dict]) -> str:
    groups: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        groups.setdefault((row["op"], row["dtype"]), []).append(row)
    shapes = list(dict.fromkeys(map(shape_of, rows)))
    cells = []
    for (op, dtype), some in groups.items():
        by_shape = {shape_of(row): f"{ratio(row):.2f}" for row in some}
        cells.append([op, dtype, *(by_shape.get(shape, "") for shape in shapes)])
    reasons = "".join(f"- {shape}: {reason}.\n" for shape, (_, reason) in EXCUSED.items())
    return "\n".join(
        [
            INTRODUCTION,
            "The worst of each op, without the shapes that are excused below:\n",
            table(COLUMNS, [summary(some) for some in groups.values()]),
            "Instructions by bytes per lane, without the scalars that a whole warp reads:\n",
            table(WIDTHS, [all_widths(some) for some in groups.values()]),
            "Sectors of all launches over what the op has to move, by shape:\n",
            table(["op", "dtype", *shapes], cells),
            "Transposing ops go beyond the limits for\n",
            reasons,
        ]
    )
