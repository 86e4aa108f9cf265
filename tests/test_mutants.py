"""A sample of the seeded faults in every run of the suite; `make mutants` has them all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from mutations import CUDA, Mutation
from mutations.all import ALL

ROOT = Path(__file__).resolve().parents[1]
# One of each sort, in files that compile quickly.
SAMPLE = [
    "lost atomic: ticket: load, add, store [finish.cuh]",
    "padding: transpose: not padded [transpose.cu]",
    "job boundary: off by one tile [multi_quantize.cu]",
    "order of sums: slabs in the order of arrival [sums.cu]",
    "32-bit index: transpose: the end of the matrix [transpose.cu]",
    "no swizzle: transpose [tile.cuh]",
]
KINDS = {
    "missing barrier", "divergent barrier", "shuffle mask", "shuffle distance", "reduction identity", "lost atomic",
    "missing fence", "row bound", "column bound", "missing bound", "bound off by one", "padding", "swapped q and q_t",
    "32-bit index", "amax after scaling", "amax through fmaxf", "truncation", "double rounding", "unaligned",
    "written before the last block", "slot not reset", "slot shared", "job boundary", "no swizzle", "uncoalesced",
    "activation", "dbias", "order of sums", "current scaling",
}  # fmt: skip


def python(*arguments: str) -> str:
    """In a process of its own, which forks before torch starts threads; its output."""
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_sample_is_caught() -> None:
    output = python("tests/mutants.py", "--only", "|".join(map(re.escape, SAMPLE)))
    assert all(mutation in output for mutation in SAMPLE)
    assert f"{len(SAMPLE)} mutations" in output and "SURVIVED" not in output


def test_what_changes_nothing_is_not_caught(tmp_path: Path) -> None:
    """The tests of a mutant fail for its fault alone."""
    harmless = Mutation(
        "none", "a comment", "transpose.cu", "// FP8 transpose, padded.", "// Nothing.",
        tests=("tests/test_cuda_kernels.py", "-k", "codes and forward"),
    )  # fmt: skip
    code = (
        "import sys; sys.path.insert(0, 'tests'); import mutants; from mutations import Mutation;"
        f"emulator, harmless = mutants.Emulator.built(), {harmless!r};"
        "folder = mutants.Path(sys.argv[1]);"
        "module = emulator.build_mutant(harmless, folder);"
        "print(repr(mutants.noticed_by(module, list(harmless.tests), folder)))"
    )
    assert python("-c", code, str(tmp_path)).strip() == "''"


def test_every_mutation_applies_once() -> None:
    names = [str(mutation) for mutation in ALL]
    assert len(set(names)) == len(names) >= 60
    assert {mutation.kind for mutation in ALL} >= KINDS
    for mutation in ALL:
        text = (CUDA / mutation.file).read_text()
        assert mutation.mutated(text) != text
