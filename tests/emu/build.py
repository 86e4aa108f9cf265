"""Builds and loads the emulator.

``build()`` serves the suite; ``build(source, folder)`` a changed copy of the sources (CMakeLists.txt, csrc/,
tests/emu/), compiled incrementally in a folder of its own. As a program, prints the path of the built module.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "third_party"))
import finders  # noqa: E402

NO_HEADERS = (
    "{} was found neither beside nvcc nor beside torch; install a CUDA toolkit, or type "
    "`pip install nvidia-cuda-runtime-cu12`"
)


def include_folder(*headers: str) -> Path:
    """Where CUDA's headers are: in the nvcc toolkit, or in the packages that come with torch."""
    candidates = []
    nvcc, _ = finders.find_nvcc()
    if nvcc:
        dry_run = finders.output_of("sh", "-c", f"'{nvcc}' --dryrun -x cu - </dev/null 2>&1")
        tops = [line.split("=", 1)[1] for line in dry_run.splitlines() if line.startswith("#$ TOP=")]
        candidates += [Path(top) / "include" for top in tops]
    packages = finders.find_torch().folder.parent / "nvidia"
    candidates += sorted(packages.glob("cu*/include"), reverse=True)
    candidates += [packages / "cuda_runtime/include", packages / "cublas/include"]
    for folder in candidates:
        if all((folder / header).exists() for header in headers):
            return folder.resolve()
    finders.stop(NO_HEADERS.format(headers[0]))


def run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"building the emulator failed:\n{done.stdout[-8000:]}")


def build(source: Path = ROOT, folder: Path | None = None, *, sanitize: bool = False) -> Path:
    """Compiles what has changed, and returns the path of the module."""
    torch, tools = finders.find_torch(), finders.find_tools()
    tag = f"emu-{sys.implementation.cache_tag}-torch{torch.version}" + ("-sanitize" if sanitize else "")
    folder = folder or source / "build" / tag
    settings = {
        "CMAKE_MAKE_PROGRAM": tools.ninja,
        "Python_EXECUTABLE": sys.executable,
        "pybind11_DIR": tools.pybind11,
        "TRANSCAST_TORCH_DIR": str(torch.folder),
        "TRANSCAST_CUDA_INCLUDE": str(include_folder("cuda_fp8.h", "cuda_runtime_api.h")),
        "TRANSCAST_CUBLAS_INCLUDE": str(include_folder("cublasLt.h", "cublas_api.h")),
        "TRANSCAST_EMU": "ON",
        "TRANSCAST_SANITIZE": "ON" if sanitize else "OFF",
    }
    arguments = [f"-D{name}={value}" for name, value in settings.items()]
    chosen = "\n".join([tools.cmake, str(source), *arguments, os.environ.get("CXX", "")])
    stamp = folder / "configured_with"
    if not stamp.exists() or stamp.read_text() != chosen:
        folder.mkdir(parents=True, exist_ok=True)
        run(tools.cmake, "--fresh", "-G", "Ninja", "-S", str(source), "-B", str(folder), *arguments)
        stamp.write_text(chosen)
    jobs = ["-j", os.environ["MAX_JOBS"]] if os.environ.get("MAX_JOBS") else []
    run(tools.cmake, "--build", str(folder), "--target", "_emu", *jobs)
    return folder / "out" / f"_emu{sysconfig.get_config_var('EXT_SUFFIX')}"


def load(path: Path) -> ModuleType:
    """Imports a built module: torch.ops.transcast_emu exists from then on. One per process."""
    spec = importlib.util.spec_from_file_location("_emu", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["_emu"] = module
    return module


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, default=ROOT, help="root of the sources")
    parser.add_argument("--folder", type=Path, help="where to build")
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UBSan")
    options = parser.parse_args()
    print(build(options.source, options.folder, sanitize=options.sanitize))
