"""How little an op can move, and how much more it may: the rules of the traffic table."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sass_rules import KERNELS, SCALES, family, threads_of

SECTOR = 32
# Ratios as the page shows them, with two decimals.
ALIGNED, ALIGNED_TRANSPOSING, RAGGED, WAVEFRONTS = 1.00, 1.02, 1.30, 1.10

# At most: column sums of one tile need no second launch.
LAUNCHES = {
    "amax": 1,
    "cast": 1,
    "cast_transpose": 1,
    "cast_transpose_dbias": 2,
    "quantize": 2,
    "quantize_transpose": 2,
    "quantize_transpose_dbias": 3,
    "multi_quantize_transpose": 2,
    "act_cast": 1,
    "act_quantize_transpose": 2,
    "dact_cast_transpose_dbias": 2,
    "dact_quantize_transpose_dbias": 3,
    "dequantize": 1,
    "transpose": 1,
}

# Shapes for which transposing ops go beyond the limits, how far, and why.
FEW_ROWS = "at most 16 rows: two columns of q_t lie in one sector, and two instructions write them"
HALF_SECTORS = "an odd multiple of 16 rows: every other row of q_t begins in the middle of a sector"
EXCUSED: dict[str, tuple[float, str]] = {
    "16x16": (2.00, FEW_ROWS),
    "8x8": (2.67, FEW_ROWS),
    "1x3221": (1.95, FEW_ROWS),
    "272x512": (1.18, HALF_SECTORS),
    "129x130": (1.45, HALF_SECTORS + "; and rows of 130 columns begin anywhere"),
    "17x33": (1.95, "short rows that begin anywhere: stores of units of q, and of bytes at their ends"),
    "2333x1": (16.3, "one column: each row is loaded and stored by itself, two sectors for three bytes"),
}


def results_of(op: str) -> int:
    """Scalars that an op's last block writes: amax, scale_inv, scale_inv_t, the scale for a next launch."""
    if "quantize" in op:
        return 3 if "transpose" in op else 2
    return 1 if op == "amax" else 2


def sectors(bytes_moved: int) -> int:
    return -(-bytes_moved // SECTOR)


@dataclass(frozen=True)
class Moved:
    """The data of one call: of the value's shape, ``operands`` times; ``parts`` of it come out."""

    op: str
    shape: tuple[int, ...]
    itemsize: int
    operands: int
    parts: int

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def tensors(self) -> int:
        return 2 if self.op == "multi_quantize_transpose" else 1

    @property
    def operand(self) -> int:
        """Sectors of all operands, read once."""
        return self.tensors * self.operands * sectors(self.elements * self.itemsize)

    @property
    def q(self) -> int:
        return self.tensors * sectors(self.parts * self.elements)

    @property
    def q_t(self) -> int:
        return self.tensors * sectors(self.parts * self.columns * -(-self.rows // 16) * 16)

    def sums(self, rows: int) -> int:
        return sectors(4 * self.parts * self.columns * rows)


def minimums(moved: Moved, launches: list[dict]) -> list[tuple[int, int]]:
    """Sectors that each launch has to read and to write: its data, and scalars, which lie apart."""
    column_tiles = max(1, -(-moved.columns // 256))
    tiles = [one["grid"][0] for one in launches if one["kernel"].startswith("tiles")]
    row_tiles = tiles[0] // column_tiles if tiles else 0
    return [_minimum(moved, one["kernel"], row_tiles) for one in launches]


def _minimum(moved: Moved, kernel: str, row_tiles: int) -> tuple[int, int]:
    if kernel.startswith("add_sums"):
        return moved.sums(row_tiles), moved.sums(1)
    if kernel.startswith(("chunks", "elements")):
        return sectors(moved.elements), sectors(moved.elements * moved.itemsize)
    if kernel.startswith("transpose"):
        return sectors(moved.elements), moved.q_t
    if kernel.startswith("multi_cast"):
        return moved.operand, moved.q + moved.q_t
    amax_only = "NoCodes" in kernel or kernel.startswith("multi_amax")
    given = int("cast" in moved.op)  # the scale, which the last block reads by itself
    results = results_of(moved.op) * moved.tensors if amax_only or given else 0
    if amax_only:
        return moved.operand, results
    if kernel.startswith("tiles"):
        sums = moved.sums(row_tiles) if kernel.endswith("true>") else 0
        return moved.operand + given, moved.q + moved.q_t + sums + results
    return moved.operand + given, moved.q + results


def minimum_of_op(moved: Moved) -> int:
    """Sectors that the op has to move: operands once, twice if their amax comes first; outputs once."""
    if moved.op == "dequantize":
        return sectors(moved.elements) + sectors(moved.elements * moved.itemsize)
    if moved.op == "transpose":
        return sectors(moved.elements) + moved.q_t
    results = results_of(moved.op) * moved.tensors + int("cast" in moved.op)
    if moved.op == "amax":
        return moved.operand + results
    passes = 2 if "quantize" in moved.op else 1
    q_t = moved.q_t if "transpose" in moved.op else 0
    dbias = moved.sums(1) if "dbias" in moved.op else 0
    return passes * moved.operand + moved.q + q_t + dbias + results


def shape_of(row: dict) -> str:
    return "x".join(map(str, row["shape"])) + row["view"]


def name_of(row: dict) -> str:
    return f"{row['op']} {shape_of(row)} {row['dtype']}"


def ratio(row: dict) -> float:
    """Sectors of all launches over what the op has to move."""
    moved = sum(one[way]["sectors"] for one in row["launches"] for way in ("read", "written"))
    return moved / row["minimum"]


def is_aligned(row: dict) -> bool:
    *rows, columns = row["shape"]
    return math.prod(rows) % 16 == 0 and columns % 16 == 0 and row["view"] != "[:, 3:259]"


def limit_of(row: dict) -> float:
    transposing = "transpose" in row["op"]
    if transposing and shape_of(row) in EXCUSED:
        return EXCUSED[shape_of(row)][0]
    return RAGGED if not is_aligned(row) else ALIGNED_TRANSPOSING if transposing else ALIGNED


def violations(row: dict) -> list[str]:
    """What in the row breaks a rule."""
    name, limit, broken = name_of(row), limit_of(row), []
    if len(row["launches"]) > LAUNCHES[row["op"].split()[0]]:
        broken.append(f"{name}: {len(row['launches'])} launches")
    if round(ratio(row), 2) > limit:
        broken.append(f"{name}: {ratio(row):.2f} x the sectors it has to move, more than {limit}")
    for one in row["launches"]:
        broken += [f"{name}, {one['kernel']}: {what}" for what in _broken_launch(one)]
        for way in ("read", "written"):
            wrong = _broken(one[way], limit, is_aligned(row))
            broken += [f"{name}, {one['kernel']}, {way}: {what}" for what in wrong]
    return broken


def _broken_launch(one: dict) -> list[str]:
    """Whether it is launched as sass_rules.py says, within nvcc's bounds, and loads each scale once."""
    broken, kernel = [], one["kernel"]
    if one["threads"] not in threads_of(kernel):
        broken.append(f"{one['threads']} threads per block, not one of {threads_of(kernel)}")
    if one["shared"] != KERNELS[family(kernel)].shared:
        broken.append(f"{one['shared']} bytes of shared memory, not {KERNELS[family(kernel)].shared}")
    warps = one["grid"] * one["threads"] // 32
    if one["read"]["uniform"] > SCALES * warps or one["written"]["uniform"]:
        uniform = (one["read"]["uniform"], one["written"]["uniform"])
        broken.append(f"{uniform} uniform sectors read and written by {warps} warps of {SCALES} scales")
    return broken


def _broken(traffic: dict, limit: float, aligned: bool) -> list[str]:
    broken = []
    if aligned and round(traffic["sectors"] / max(1, traffic["minimum"]), 2) > limit:
        broken.append(f"{traffic['sectors']} sectors of {traffic['minimum']}, more than {limit}")
    if traffic["wavefronts"] > WAVEFRONTS * traffic["wavefronts_minimum"]:
        broken.append(f"{traffic['wavefronts']} wavefronts of {traffic['wavefronts_minimum']}")
    narrow = sum(count for width, count in traffic["widths"].items() if int(width) < 4)
    if aligned and narrow:
        broken.append(f"{narrow} instructions of less than 4 bytes per lane")
    return broken
