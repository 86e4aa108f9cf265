"""Times what happens before the first call: a clean CPU build and the import."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["csrc", "python", "third_party"]
FILES = ["CMakeLists.txt", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"]
BUILT = shutil.ignore_patterns("*.so", "__pycache__")


def build_seconds() -> float:
    """pip install of a fresh copy of the sources into an empty folder, without CUDA."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "transcast"
        copy.mkdir()
        for name in FOLDERS:
            shutil.copytree(ROOT / name, copy / name, ignore=BUILT)
        for name in FILES:
            shutil.copy(ROOT / name, copy)
        options = ["--no-build-isolation", "--no-deps", "--no-index", "--no-cache-dir", "--quiet"]
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            *options,
            "--target",
            f"{folder}/installed",
            str(copy),
        ]
        start = time.perf_counter()
        subprocess.run(
            command, check=True, env={**os.environ, "TRANSCAST_CUDA": "0"}, stdout=subprocess.DEVNULL
        )
        return time.perf_counter() - start


def import_seconds(rounds: int = 7) -> float:
    """What ``import transcast`` adds to ``import torch``: the median over fresh processes."""
    code = "import time, torch; t = time.perf_counter(); import transcast; print(time.perf_counter() - t)"
    command = [sys.executable, "-c", code]
    outputs = [subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout for _ in range(rounds)]
    return statistics.median(map(float, outputs))
