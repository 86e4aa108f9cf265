"""The benchmarks run, their peers do the same work, and their timing is what README.md says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import cases
import pytest
import torch
import transcast as tc

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

import marks  # noqa: E402
import peers  # noqa: E402
import rows  # noqa: E402
import timing  # noqa: E402
from timing import Contender, measure  # noqa: E402

KEYS = {"op", "backend", "shape", "dtype", "ours_us", "peer", "peer_us", "ratio", "floor_us"}


def run(*arguments: str) -> subprocess.CompletedProcess:
    package = str(Path(tc.__file__).parent.parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(BENCHMARKS / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)


def test_one_row_is_measured_and_written(tmp_path):
    done = run("--only", "linear_64 64x64x64 fp32", "--rounds", "1", "--json", str(tmp_path / "rows.json"))
    assert done.returncode == 0, done.stderr
    entries = json.loads((tmp_path / "rows.json").read_text())
    assert "nn.Linear" in [entry["peer"] for entry in entries]
    for entry in entries:
        assert KEYS <= entry.keys()
        assert (entry["op"], entry["backend"], entry["dtype"]) == ("linear_64", "cpu", "fp32")
        assert entry["shape"] == [64, 64, 64]
        assert entry["ours_us"] > 0 and entry["floor_us"] > 0
        if entry["peer"] is None:
            assert entry["ratio"] is None and entry["missing"].startswith("torchao: ")
        else:
            assert entry["ratio"] == pytest.approx(entry["peer_us"] / entry["ours_us"])
            assert entry["peer"] in done.stdout


def test_a_pattern_without_rows_is_an_error():
    done = run("--only", "matrix_product")
    assert done.returncode != 0
    assert "'matrix_product' matches no row" in done.stderr and "quantize_transpose" in done.stderr
    assert "Traceback" not in done.stderr


def test_json_into_a_missing_folder_is_an_error(tmp_path):
    done = run("--only", "linear_64", "--json", str(tmp_path / "none" / "rows.json"))
    assert done.returncode != 0 and "there is no folder" in done.stderr and "Traceback" not in done.stderr


def test_every_row_can_be_built_and_every_mark_has_its_peer():
    known = {(row["op"], row["shape"], row["dtype"]) for row in cases.BENCHMARKS}
    assert {op for op, _, _ in known} == rows.BUILDERS.keys()
    wanted: dict[tuple, set[str]] = {}
    for mark in marks.MARKS:
        wanted.setdefault((mark.op, mark.shape, mark.dtype), set()).add(mark.peer)
    assert wanted.keys() <= known
    for case, names in wanted.items():
        assert names <= {peer.name for peer in rows.build(*case).peers}, case


@pytest.mark.parametrize("op", ["amax", "cast", "cast_transpose", "quantize", "quantize_transpose"])
def test_peers_give_the_same_bytes(op):
    x = torch.randn(64, 48, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    arguments = {"amax": (), "cast": (torch.tensor(1.7), tc.E4M3), "quantize": (tc.E4M3,)}
    given = arguments[op.removesuffix("_transpose")]
    ours, theirs = getattr(tc, op)(x, *given), getattr(peers, op)(x, *given)
    pairs = [(ours, theirs)] if op == "amax" else list(zip(ours, theirs, strict=True))
    for mine, other in pairs:
        if mine.dtype == tc.E4M3:
            mine, other = mine.view(torch.uint8), other.view(torch.uint8)
        assert torch.equal(mine, other.to(mine.dtype))


def test_dequantize_of_the_peer_gives_the_same_values():
    operands = cases.fp8((32, 48), tc.E4M3), torch.tensor(0.37), torch.float32
    assert torch.equal(tc.dequantize(*operands), peers.dequantize(*operands))


class Clock:
    """Stands for the module ``time``: it moves only when a contender runs."""

    def __init__(self) -> None:
        self.now, self.order = 0.0, ""

    def perf_counter(self) -> float:
        return self.now

    def contender(self, name: str, seconds: float) -> Contender:
        def call() -> None:
            self.now += seconds
            self.order += name

        return Contender(name, call)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def test_contenders_take_turns(clock):
    contenders = [clock.contender(name, 0.2) for name in "ABC"]
    measure(contenders, rounds=4)
    assert clock.order == "AABBCC" + "ABC" * 4  # warm-up and first guess, then the rounds
    assert [c.us for c in contenders] == [pytest.approx(2e5)] * 3


def test_a_sample_lasts_2_ms_and_reports_one_call(clock):
    quick = clock.contender("q", 1e-4)
    measure([quick], rounds=1)
    assert quick.us == pytest.approx(100)
    assert len(clock.order) == 2 + 3 * 5 + 20


def test_slow_contenders_are_sampled_less_and_spread_over_the_rounds(clock):
    contenders = [clock.contender(*c) for c in [("a", 0.2), ("b", 0.5), ("c", 2.9), ("d", 60.0)]]
    measure(contenders, rounds=12)
    assert [len(c.samples) for c in contenders] == [12, 6, 3, 1]
    assert [c.us for c in contenders] == [pytest.approx(us) for us in (2e5, 5e5, 2.9e6, 6e7)]
    assert clock.order[8:] == "aabaabc" * 3


@pytest.mark.parametrize("works", [0, 6])
def test_a_peer_that_fails_is_missing_but_our_own_failure_is_raised(clock, works):
    def broken(name: str) -> Contender:
        left = iter(range(works))

        def call() -> None:
            clock.now += 3e-3
            if next(left, None) is None:
                raise RuntimeError("no such kernel\nand a long trace")

        return Contender(name, call)

    fine, peer = clock.contender("f", 3e-3), broken("peer")
    measure([fine, peer], rounds=4)
    assert peer.us is None and peer.missing == "RuntimeError: no such kernel"
    assert len(fine.samples) == 4
    with pytest.raises(RuntimeError, match="no such kernel"):
        measure([broken("ours"), fine], rounds=4)


def test_without_torchao_its_peers_are_missing(monkeypatch):
    for module in ("torchao", "torchao.float8", "torchao.float8.float8_scaling_utils"):
        monkeypatch.setitem(sys.modules, module, None)  # an import of it raises
    layer = peers.torchao_linear(torch.nn.Linear(16, 16), lambda module: None, compile_it=False)
    quantize = peers.torchao_quantize(torch.zeros(16, 16), tc.E4M3)
    for contender in (layer, quantize):
        measure([Contender("ours", lambda: None), contender], rounds=1)
        assert contender.us is None and "torchao" in contender.missing
