"""What each op moves on a GPU, counted by the emulator: sectors, wavefronts, access widths, launches.

python benchmarks/traffic.py [--write]: see README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "tests")]

from traffic_page import page  # noqa: E402
from traffic_rules import Moved, minimum_of_op, minimums, violations  # noqa: E402

TABLE, PAGE = HERE / "results" / "traffic.json", HERE / "results" / "traffic.md"

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
E4M3 = torch.float8_e4m3fn
# Both sides multiples of 16: operator shapes of transformers in small. Then ragged ones, like some of TE's.
ALIGNED = [(256, 1024), (128, 1536), (32, 4096), (1024, 128), (16, 16)]
RAGGED = [
    (272, 512), (120, 2080), (217, 256), (5, 4, 3, 160), (8, 8),
    (241, 677), (129, 130), (17, 33), (1, 3221), (2333, 1),
]  # fmt: skip
# Columns first:last of a matrix with 1024: at 16-byte addresses, and not.
VIEWS = {"[:, 256:512]": (256, 512), "[:, 3:259]": (3, 259)}
VIEW_OPS = ["amax", "cast", "cast_transpose", "quantize_transpose_dbias", "multi_quantize_transpose"]


@dataclass(frozen=True)
class Op:
    """How an op is called: with data of the value's shape, what makes more of it, and the dtype."""

    call: Callable[[Any, Tensor, Callable[[], Tensor], torch.dtype], Any]
    operands: int = 1
    parts: int = 1  # of the value: 2 for the gradients of swiglu
    dtypes: tuple[str, ...] = ("bf16",)


BOTH = ("bf16", "fp32")
ONE = torch.ones(())
OPS: dict[str, Op] = {
    "amax": Op(lambda ops, x, make, dtype: ops.amax(x), dtypes=BOTH),
    "cast": Op(lambda ops, x, make, dtype: ops.cast(x, ONE, E4M3), dtypes=BOTH),
    "cast_transpose": Op(lambda ops, x, make, dtype: ops.cast_transpose(x, ONE, E4M3), dtypes=BOTH),
    "cast_transpose_dbias": Op(
        lambda ops, x, make, dtype: ops.cast_transpose_dbias(x, ONE, E4M3), dtypes=BOTH
    ),
    "quantize": Op(lambda ops, x, make, dtype: ops.quantize(x, E4M3)),
    "quantize_transpose": Op(lambda ops, x, make, dtype: ops.quantize_transpose(x, E4M3), dtypes=BOTH),
    "quantize_transpose_dbias": Op(lambda ops, x, make, dtype: ops.quantize_transpose_dbias(x, E4M3)),
    "multi_quantize_transpose": Op(
        lambda ops, x, make, dtype: ops.multi_quantize_transpose([x, make()], E4M3)
    ),
    "act_cast silu": Op(lambda ops, x, make, dtype: ops.act_cast(x, ONE, E4M3, "silu")),
    "act_cast swiglu": Op(lambda ops, x, make, dtype: ops.act_cast(x, ONE, E4M3, "swiglu", make()), 2),
    "act_quantize_transpose swiglu": Op(
        lambda ops, x, make, dtype: ops.act_quantize_transpose(x, E4M3, "swiglu", make()), 2, dtypes=BOTH
    ),
    "dact_cast_transpose_dbias gelu_tanh": Op(
        lambda ops, x, make, dtype: ops.dact_cast_transpose_dbias(make(), x, ONE, E4M3, "gelu_tanh"), 2
    ),
    "dact_quantize_transpose_dbias swiglu": Op(
        lambda ops, x, make, dtype: ops.dact_quantize_transpose_dbias(make(), x, E4M3, "swiglu", make()),
        3, 2, BOTH,
    ),  # fmt: skip
    "dequantize": Op(lambda ops, q, make, dtype: ops.dequantize(q, ONE, dtype), dtypes=BOTH),
    "transpose": Op(lambda ops, q, make, dtype: ops.transpose(q)),
}


def data(op: str, shape: tuple[int, ...], dtype: str, view: str) -> Tensor:
    kind = E4M3 if op in ("dequantize", "transpose") else DTYPES[dtype]
    if not view:
        return torch.ones(shape).to(kind)
    first, last = VIEWS[view]
    return torch.ones(shape[0], 1024).to(kind)[:, first:last]


def launches_of(emu: ModuleType, op: str, shape: tuple[int, ...], dtype: str, view: str) -> list[dict]:
    """What the emulator counts in one call."""

    def make() -> Tensor:
        return data(op, shape, dtype, view)

    def call() -> None:
        OPS[op].call(torch.ops.transcast_emu, make(), make, DTYPES[dtype])

    emu.reset()
    call()  # what happens once per device
    emu.reset()
    emu.count(True)
    call()
    launches = emu.launches()
    emu.reset()
    return launches


def row_of(emu: ModuleType, op: str, shape: tuple[int, ...], dtype: str, view: str) -> dict:
    launches = launches_of(emu, op, shape, dtype, view)
    moved = Moved(op.split()[0], shape, DTYPES[dtype].itemsize, OPS[op].operands, OPS[op].parts)
    counted = []
    for launch, least in zip(launches, minimums(moved, launches), strict=True):
        one = {"kernel": launch["kernel"], "grid": launch["grid"][0]}
        one |= {"threads": launch["block"][0], "shared": launch["shared_bytes"]}
        for way, minimum in zip(("read", "written"), least, strict=True):
            traffic = launch[way]
            one[way] = {
                "sectors": traffic["sectors"] - traffic["uniform"],
                "minimum": minimum,
                "uniform": traffic["uniform"],
                "widths": {str(width): count for width, count in sorted(traffic["widths"].items())},
                "wavefronts": traffic["wavefronts"],
                "wavefronts_minimum": traffic["wavefronts_minimum"],
            }
        counted.append(one)
    name = {"op": op, "shape": list(shape), "dtype": dtype, "view": view}
    return {**name, "minimum": minimum_of_op(moved), "launches": counted}


def cases() -> Iterator[tuple[str, tuple[int, ...], str, str]]:
    for op, how in OPS.items():
        for dtype in how.dtypes:
            for shape in [*ALIGNED, *RAGGED]:
                yield op, shape, dtype, ""
            for view in VIEWS if op in VIEW_OPS else ():
                yield op, (256, 256), dtype, view


def measure(emu: ModuleType, op: str = "") -> list[dict]:
    """The rows of the table, or those of one op."""
    return [row_of(emu, *case) for case in cases() if op in ("", case[0])]


def as_json(rows: list[dict]) -> str:
    return "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name} and {PAGE.name}")
    arguments = parser.parse_args()
    import transcast  # noqa: F401  its ops' schemas
    from emu import build

    rows = measure(build.load(build.build()))
    print(page(rows), end="")
    if arguments.write:
        TABLE.write_text(as_json(rows))
        PAGE.write_text(page(rows))
    wrong = [what for row in rows for what in violations(row)]
    if wrong:
        sys.exit("\n".join(["traffic: the rules are broken", *wrong]))


if __name__ == "__main__":
    main()
