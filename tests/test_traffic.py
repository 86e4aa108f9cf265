"""What the kernels move is what benchmarks/results says, and keeps within its limits."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import pytest
import torch

from cases import E4M3, OUTPUTS

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import traffic  # noqa: E402
import traffic_page  # noqa: E402
import traffic_rules  # noqa: E402

COMMITTED = json.loads(traffic.TABLE.read_text())


@pytest.mark.parametrize("op", traffic.OPS)
def test_counted_anew(emu, op):
    """First the rules, so that a failure names the one that is broken."""
    rows = traffic.measure(emu, op)
    assert [what for row in rows for what in traffic_rules.violations(row)] == []
    committed = [row for row in COMMITTED if row["op"] == op]
    for row, expected in zip(rows, committed, strict=True):
        assert row == expected, "python benchmarks/traffic.py --write makes the table anew"


def test_committed_table_keeps_the_rules() -> None:
    assert [what for row in COMMITTED for what in traffic_rules.violations(row)] == []


def test_the_page_shows_the_committed_table() -> None:
    assert traffic.TABLE.read_text() == traffic.as_json(COMMITTED)
    assert traffic.PAGE.read_text() == traffic_page.page(COMMITTED)


def test_every_op_with_a_kernel_is_there() -> None:
    """act_quantize has the passes of act_cast and quantize, act_cast_transpose act_quantize_transpose's."""
    elsewhere = {"act_quantize", "act_cast_transpose", "gemm", "gemm_out", "gemm_fp8"}
    assert {op.split()[0] for op in traffic.OPS} == OUTPUTS.keys() - elsewhere
    assert OUTPUTS.keys() - elsewhere == traffic_rules.LAUNCHES.keys()


def test_limits() -> None:
    rules = traffic_rules
    assert (rules.ALIGNED, rules.ALIGNED_TRANSPOSING, rules.RAGGED) == (1.00, 1.02, 1.30)
    assert rules.WAVEFRONTS == 1.10
    for op, launches in rules.LAUNCHES.items():
        most = 1 if op in ("amax", "dequantize", "transpose") or "cast" in op else 2
        assert launches <= most + ("dbias" in op), op


def test_excuses_are_needed() -> None:
    for shape, (limit, _) in traffic_rules.EXCUSED.items():
        rows = [row for row in COMMITTED if traffic_rules.shape_of(row) == shape]
        assert max(map(traffic_rules.ratio, rows)) > traffic_rules.ALIGNED_TRANSPOSING, shape
        assert limit > traffic_rules.ALIGNED_TRANSPOSING


@pytest.mark.parametrize("tensors", [1, 3, 60])
def test_many_matrices_take_two_launches(emu, tensors):
    xs = [torch.ones(1 + i, 8 * i, dtype=torch.bfloat16) for i in range(tensors)]
    emu.count(True)
    torch.ops.transcast_emu.multi_quantize_transpose(xs, E4M3)
    kernels = [one["kernel"].split("<")[0] for one in emu.launches()]
    assert kernels == ["multi_amax_kernel", "multi_cast_kernel"]


@pytest.mark.parametrize("op", ["quantize", "quantize_transpose"])
@pytest.mark.parametrize("rows, fits", [(512, True), (520, False)])
def test_what_fits_l2_is_read_again_from_its_end(emu, op, rows, fits):
    """The emulated L2 holds 1 MiB: 512 rows of 1024 BF16."""
    emu.count(True)
    getattr(torch.ops.transcast_emu, op)(torch.ones(rows, 1024, dtype=torch.bfloat16), E4M3)
    first, second = (one["read"] for one in emu.launches())
    assert first["first"] < first["last"]
    assert (second["first"] > second["last"]) == fits


def doctored(op: str, launch: int, way: str, **changes: object) -> dict:
    row = copy.deepcopy(next(row for row in COMMITTED if row["op"] == op and traffic_rules.is_aligned(row)))
    row["launches"][launch][way].update(changes)
    return row


def test_rules_notice() -> None:
    read = COMMITTED[0]["launches"][0]["read"]
    assert traffic_rules.violations(COMMITTED[0]) == []
    for way in ("read", "written"):
        assert "x the sectors" in traffic_rules.violations(doctored("cast", 0, way, sectors=20000))[0]
    assert "of 1" in traffic_rules.violations(doctored("dequantize", 0, "read", minimum=1))[0]
    wavefronts = traffic_rules.violations(doctored("transpose", 0, "written", wavefronts=10**6))
    assert "1000000 wavefronts" in wavefronts[0] and len(wavefronts) == 1
    narrow = traffic_rules.violations(doctored("amax", 0, "read", widths={**read["widths"], "2": 5}))
    assert "5 instructions" in narrow[0] and len(narrow) == 1
    for launch in (
        {"threads": 128},  # fewer warps than the rows of a tile need
        {"threads": 512},  # more than the kernel is compiled for
        {"shared": 0},
    ):
        changed = doctored("cast", 0, "read")
        changed["launches"][0].update(launch)
        (name, value), what = launch.popitem(), traffic_rules.violations(changed)
        assert f"{value} {'threads' if name == 'threads' else 'bytes'}" in what[0] and len(what) == 1
    scalars = traffic_rules.violations(doctored("cast", 0, "read", uniform=10**6))
    assert "1000000, 0" in scalars[0] and len(scalars) == 1
    twice = doctored("cast_transpose", 0, "read")
    twice["launches"] *= 2
    assert "2 launches" in traffic_rules.violations(twice)[0]
