"""Builds transcast for this machine's GPU and says what came out of it; a dry run builds the emulator."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import record
from record import ROOT, Step


def build_for_the_gpu(step: Step) -> int:
    archs = os.environ.get("TORCH_CUDA_ARCH_LIST") or step.facts["capability"]
    env = {**os.environ, "TRANSCAST_CUDA": "1", "TORCH_CUDA_ARCH_LIST": archs}
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    started = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, env=env).returncode
    step.row(op="build", ok=code == 0, archs=archs, seconds=round(time.monotonic() - started, 1))
    return code


def build_the_emulator(step: Step) -> int:
    started = time.monotonic()
    code = subprocess.run([sys.executable, str(ROOT / "tests/emu/build.py")], cwd=ROOT).returncode
    step.row(op="build", ok=code == 0, archs="emulated", seconds=round(time.monotonic() - started, 1))
    return code


def report(step: Step) -> None:
    import transcast as tc

    found = tc.info()
    libraries = {path.name: path.stat().st_size for path in (ROOT / "python/transcast").glob("*.so")}
    features = {f.name: f"{'yes' if f.available else 'no'}: {f.note}" for f in found.features}
    step.row(op="info", versions=found.versions, build=found.build, features=features, bytes=libraries)
    if step.device == "cuda":
        ready = [f.available for f in found.features if f.name == "ops on CUDA"]
        assert ready == [True], features["ops on CUDA"]


def main(argv: list[str] | None = None) -> None:
    step = record.step_of(record.parser(__doc__).parse_args(argv))
    code = build_the_emulator(step) if step.dry else build_for_the_gpu(step)
    if code:
        sys.exit(code)
    step.attempt("info", lambda: report(step))
    sys.exit(1 if step.failures else 0)


if __name__ == "__main__":
    main()
