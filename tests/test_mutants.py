"""Seeded faults: every one still applies, and a fixed sample is noticed; `make mutants` runs all of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mutations import CUDA, Mutation
from mutations.all import ALL

# One for each way to notice: a race, bytes, a bound, the last block's protocol, the traffic table; and one outside of
# csrc/cuda.
SAMPLE = [
    next(str(m).split(" [")[0] for m in ALL if (m.kind, m.file) == ("missing barrier", "cast.cuh")),
    "lost atomic: amax: exchange for maximum",
    "shuffle distance: warp_max begins at 8",
    "row bound: Extent: one row more",
    "missing fence: before the ticket",
    "no swizzle: runs",
    "current scaling: margin ignored",
]


@pytest.mark.parametrize("mutation", ALL, ids=str)
def test_applies(mutation: Mutation) -> None:
    text = (CUDA / mutation.file).read_text()
    assert mutation.mutated(text) != text


def test_each_is_there_once() -> None:
    assert len({str(mutation) for mutation in ALL}) == len(ALL) >= 60


def test_sample_is_noticed() -> None:
    only = "|".join(f"^{re.escape(name)} \\[" for name in SAMPLE)
    program = Path(__file__).with_name("mutants.py")
    done = subprocess.run([sys.executable, str(program), "--only", only], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(SAMPLE)} mutations" in done.stdout


def test_a_mutant_that_cannot_be_loaded_is_not_tried() -> None:
    """Tests that fail because there is no module to test have noticed nothing."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import mutants; from mutations import Mutation\n"
        "old = '__global__ void probe_kernel() {'\n"
        "new = 'void undefined(); ' + old + ' undefined();'\n"
        "mutation = Mutation('no fault', 'undefined symbol', 'state.cu', old, new)\n"
        "verdict = mutants.verdict_on(mutation, mutants.Emulator.built())\n"
        "print(verdict.outcome, verdict.error)\n"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.startswith("NOT TRIED") and "undefined symbol" in done.stdout, done.stdout + done.stderr
