"""Seeded faults in csrc/cuda: what is changed, and whether tests notice. `make mutants`: tests/mutants.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CUDA = Path(__file__).resolve().parents[2] / "csrc/cuda"
CONTROL = "control"  # the kind of those that change nothing at all


@dataclass(frozen=True)
class Mutation:
    """``old`` becomes ``new`` in a file of csrc/cuda, where it must occur ``times`` times.

    ``units`` are the .cu files to compile with it (default: PLAIN if that includes the file, else all that
    do). ``nth`` chooses one occurrence of several. ``survives`` says why no test can notice: the mutation
    changes nothing that counts.
    """

    kind: str
    name: str
    file: str
    old: str
    new: str
    times: int = 1
    nth: int | None = None
    units: tuple[str, ...] = ()
    tests: tuple[str, ...] = ("tests/test_cuda_kernels.py",)
    survives: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.name} [{self.file}]"

    def mutated(self, text: str) -> str:
        """``text`` of the file with the fault in it."""
        found = text.count(self.old)
        if found != self.times:
            raise ValueError(f"{self.name}: {self.file} has {found} of {self.old!r}, expected {self.times}")
        if self.nth is None:
            return text.replace(self.old, self.new)
        pieces = text.split(self.old)
        return self.old.join(pieces[: self.nth + 1]) + self.new + self.old.join(pieces[self.nth + 1 :])
