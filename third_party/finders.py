"""Finds what the build takes from elsewhere: torch, the compiler, CMake, ninja, pybind11, CUDA.

Where something is missing or does not fit, stops with one sentence that says what to type instead.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

INSTALL = "pip install --no-build-isolation ."
INSTALL_TOOLS = "pip install -U setuptools wheel cmake ninja pybind11"
MIN_TORCH = (2, 10)
MIN_CMAKE = (3, 24)
MIN_CUDA = (12, 6)
MIN_ARCH = (8, 9)  # the first with FP8 tensor cores
WITHOUT_CUDA = f"or build without CUDA, `TRANSCAST_CUDA=0 {INSTALL}`"


def stop(sentence: str) -> NoReturn:
    sys.exit(f"transcast: {sentence}.")


def pair(version: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


def dotted(version: tuple[int, int]) -> str:
    return "{}.{}".format(*version)


def output_of(*command: str) -> str:
    try:
        return subprocess.run(command, text=True, capture_output=True).stdout
    except OSError:
        return ""


@dataclass(frozen=True)
class Torch:
    folder: Path
    version: str
    cuda: str | None


def find_torch() -> Torch:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        stop(
            "there is no torch here to compile against (pip's isolated build hides an installed one); type "
            f"`pip install 'torch>={dotted(MIN_TORCH)}'`, `{INSTALL_TOOLS}` and then `{INSTALL}`"
        )
    # Read, not imported: quick, and a build needs none of torch's libraries to load.
    facts: dict[str, str | None] = {}
    folder = Path(spec.origin).parent
    exec((folder / "version.py").read_text(), facts)
    version = str(facts["__version__"])
    if pair(version) < MIN_TORCH:
        remedy = f"`pip install -U 'torch>={dotted(MIN_TORCH)}'` and then `{INSTALL}`"
        stop(f"torch {version} is too old; type {remedy}")
    return Torch(folder, version, facts.get("cuda"))


def check_compiler() -> None:
    default = next(filter(shutil.which, ("c++", "g++", "clang++")), "c++")
    command = shlex.split(os.environ.get("CXX", default))
    advice = f"install g++ 9 or clang++ 10 or newer, or name one that is there: `CXX=g++ {INSTALL}`"
    source = "#include <optional>\nint main() { if constexpr (sizeof(std::optional<int>) > 0) return 0; }"
    arguments = ["-std=c++17", "-x", "c++", "-fsyntax-only", "-"]
    try:
        compiled = subprocess.run([*command, *arguments], input=source, text=True, capture_output=True)
    except OSError:
        stop(f"there is no C++ compiler ({' '.join(command)} cannot be run); {advice}")
    if compiled.returncode != 0:
        stop(f"{' '.join(command)} does not compile C++17; {advice}")


@dataclass(frozen=True)
class Tools:
    cmake: str
    ninja: str
    pybind11: str


def find_tools() -> Tools:
    # Those beside this Python come first: a virtual environment need not be activated.
    remedy = f"type `{INSTALL_TOOLS}` and then `{INSTALL}`"
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    found = {name: shutil.which(name, path=path) for name in ("cmake", "ninja")}
    spec = importlib.util.find_spec("pybind11")
    found["pybind11"] = spec.origin if spec else None
    missing = [name for name, place in found.items() if place is None]
    if missing:
        stop(f"{', '.join(missing)} not found; {remedy}")
    version = re.search(r"\d+\.\d+", output_of(str(found["cmake"]), "--version"))
    if version is None or pair(version[0]) < MIN_CMAKE:
        stop(f"{found['cmake']} is not CMake {dotted(MIN_CMAKE)} or later; {remedy}")
    import pybind11

    return Tools(str(found["cmake"]), str(found["ninja"]), pybind11.get_cmake_dir())


@dataclass(frozen=True)
class Cuda:
    nvcc: str | None
    archs: tuple[str, ...]
    note: str  # the line of the build report


def find_nvcc() -> tuple[str | None, str]:
    """Where nvcc is, or None, and where it was looked for: a place named in the environment counts alone."""
    if home := os.environ.get("CUDA_HOME"):
        return shutil.which(f"{home}/bin/nvcc"), f"CUDA_HOME={home}"
    if named := os.environ.get("CUDACXX"):
        return shutil.which(named), f"CUDACXX={named}"
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc"), "PATH or /usr/local/cuda"


def choose_archs(nvcc: tuple[int, int]) -> tuple[list[str], str]:
    """The archs to build for, and a note on those of TORCH_CUDA_ARCH_LIST that are not."""
    if not (wanted := os.environ.get("TORCH_CUDA_ARCH_LIST", "").strip()):
        return ["8.9", "9.0"] + (["10.0", "12.0+PTX"] if nvcc >= (12, 8) else []), ""
    archs = re.split(r"[;,\s]+", wanted)
    for arch in archs:
        if not re.fullmatch(r"\d+\.\d[af]?(\+PTX)?", arch):
            numbers = f"`TORCH_CUDA_ARCH_LIST='9.0;12.0+PTX' {INSTALL}`"
            stop(f"TORCH_CUDA_ARCH_LIST has {arch!r}; write numbers, {numbers}")
    old = [arch for arch in archs if pair(arch) < MIN_ARCH]
    note = f"; {', '.join(old)} left out: no FP8 tensor cores before {dotted(MIN_ARCH)}" if old else ""
    return [arch for arch in archs if arch not in old], note


def choose_cuda(torch: Torch) -> Cuda:
    """Whether _cuda is built, and for what. Stops where that is not what was asked for or cannot be meant."""
    wish = os.environ.get("TRANSCAST_CUDA", "")
    if wish not in ("", "0", "1"):
        stop(f"TRANSCAST_CUDA is {wish!r}; type `TRANSCAST_CUDA=1 {INSTALL}`, {WITHOUT_CUDA}")

    def left_out(reason: str, remedy: str) -> Cuda:
        if wish == "1":
            stop(f"TRANSCAST_CUDA=1, but {reason}; {remedy}, {WITHOUT_CUDA}")
        return Cuda(None, (), f"left out: {reason}")

    if wish == "0":
        return Cuda(None, (), "left out: TRANSCAST_CUDA=0")
    if torch.cuda is None:
        return left_out(f"torch {torch.version} is built without CUDA", "install a CUDA build of torch")
    nvcc, place = find_nvcc()
    if nvcc is None:
        toolkit = f"install the CUDA {torch.cuda} toolkit and type `CUDA_HOME=/usr/local/cuda {INSTALL}`"
        return left_out(f"there is no nvcc in {place}", toolkit)
    release = re.search(r"release (\d+\.\d+)", output_of(nvcc, "--version"))
    if release is None:
        remedy = f"name one that works, `CUDA_HOME=/usr/local/cuda {INSTALL}`"
        stop(f"{nvcc} does not tell its version; {remedy}, {WITHOUT_CUDA}")
    version, needed = pair(release[1]), pair(torch.cuda)
    if version[0] != needed[0] or version < MIN_CUDA:
        stop(
            f"{nvcc} is CUDA {release[1]}, but torch {torch.version} is built for CUDA {torch.cuda}; type "
            f"`CUDA_HOME=/path/to/cuda-{dotted(max(needed, MIN_CUDA))} {INSTALL}`, {WITHOUT_CUDA}"
        )
    archs, note = choose_archs(version)
    if not archs:
        remedy = f"type `TORCH_CUDA_ARCH_LIST=9.0 {INSTALL}`"
        return left_out(f"TORCH_CUDA_ARCH_LIST names nothing that can be built{note}", remedy)
    return Cuda(nvcc, tuple(archs), f"built with nvcc {release[1]} for {', '.join(archs)}{note}")


@dataclass(frozen=True)
class Plan:
    torch: Torch
    tools: Tools
    cuda: Cuda


def make_plan() -> Plan:
    torch = find_torch()
    check_compiler()
    return Plan(torch, find_tools(), choose_cuda(torch))
