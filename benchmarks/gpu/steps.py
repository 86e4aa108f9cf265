"""The steps of the check, in the order of their value, and the time that each may take."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
WITH_TRANSCAST = ("build",)


@dataclass(frozen=True)
class StepPlan:
    """``seconds`` is the most that the step may take. Steps of one ``stage`` run at the same time."""

    name: str
    stage: int
    seconds: int
    program: str
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = WITH_TRANSCAST  # steps without whose success it makes no sense
    correctness: bool = False  # decides about the exit code
    in_quick: bool = False

    def command(self, out: Path, device: str, quick: bool, dry: bool) -> list[str]:
        command = [sys.executable, str(BENCHMARKS / self.program), *self.arguments, "--name", self.name]
        command += ["--out", str(out), "--device", device]
        return command + ["--quick"] * (quick and "--quick" not in self.arguments) + ["--dry"] * dry


# The probe asks a library only: it has the GPU while the compilers have the processors. Nothing runs beside a
# step that times. All up to products get their turn even if each takes its whole time.
STEPS = [
    StepPlan("build", 0, 210, "gpu/build_step.py", needs=(), correctness=True, in_quick=True),
    StepPlan("probe", 0, 120, "probe_cublaslt.py", needs=(), correctness=True, in_quick=True),
    StepPlan("smoke", 1, 60, "gpu/smoke.py", correctness=True, in_quick=True),
    StepPlan("first", 2, 45, "gpu/bench.py", ("kernels", "products", "layers", "--quick"), in_quick=True),
    StepPlan("tests", 3, 110, "gpu/suite.py", correctness=True, in_quick=True),
    StepPlan("sanitizers", 3, 110, "gpu/sanitize.py", correctness=True),
    StepPlan("products", 4, 40, "gpu/bench.py", ("products",)),
    StepPlan("training", 5, 60, "gpu/bench.py", ("training",)),
    StepPlan("kernels", 6, 60, "gpu/bench.py", ("kernels",)),
    StepPlan("layers", 7, 90, "gpu/bench.py", ("layers",)),
]
