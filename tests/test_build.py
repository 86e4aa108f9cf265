"""The build: what it looks for, with what sentence it stops, what it leaves behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
sys.path.insert(0, str(ROOT / "third_party"))
import finders  # noqa: E402

CUDA_TORCH = finders.Torch(Path("torch"), "2.14.1+cu130", "13.0")
CPU_TORCH = finders.Torch(Path("torch"), "2.14.1+cpu", None)


@pytest.fixture(autouse=True)
def no_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRANSCAST_CUDA", "TORCH_CUDA_ARCH_LIST", "CUDA_HOME", "CUDACXX", "CXX"):
        monkeypatch.delenv(name, raising=False)


def sentence_of(call: Callable[..., Any], *args: Any) -> str:
    """The one line with which ``call`` stops the build; it must hold something to type."""
    with pytest.raises(SystemExit) as stopped:
        call(*args)
    sentence = str(stopped.value)
    assert sentence.startswith("transcast: ") and "\n" not in sentence
    assert re.search(r"`[^`]*pip install [^`]+`", sentence), sentence
    return sentence


def program(path: Path, prints: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{prints}'\n")
    path.chmod(0o755)
    return path


def run(*command: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=os.environ | environment, text=True, capture_output=True)


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a CUDA toolkit of the given version where the build looks first."""

    def install(version: str) -> None:
        program(tmp_path / "bin/nvcc", f"Cuda compilation tools, release {version}, V{version}.1")
        monkeypatch.setenv("CUDA_HOME", str(tmp_path))

    return install


# ---- what stops a build


def test_without_torch_the_sentence_names_no_build_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finders.importlib.util, "find_spec", lambda name: None)
    sentence = sentence_of(finders.find_torch)
    assert "no torch" in sentence and "pip install --no-build-isolation ." in sentence


def test_an_old_torch_stops_pip_before_the_build_and_without_traceback(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise AssertionError('the build must not import torch')")
    (tmp_path / "torch/version.py").write_text("__version__ = '2.9.1+cu128'\ncuda = '12.8'\n")
    stopped = run(sys.executable, "setup.py", "dist_info", PYTHONPATH=str(tmp_path))
    assert stopped.returncode == 1 and "Traceback" not in stopped.stderr
    assert stopped.stderr.splitlines()[-1] == (
        "transcast: torch 2.9.1+cu128 is too old; type `pip install -U 'torch>=2.10'` and then "
        "`pip install --no-build-isolation .`."
    )


@pytest.mark.parametrize(
    ("compiler", "complaint"), [("/nonexistent", "cannot be run"), ("false", "does not compile C++17")]
)
def test_a_missing_or_old_compiler(compiler: str, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", compiler)
    sentence = sentence_of(finders.check_compiler)
    assert compiler in sentence and complaint in sentence


def test_missing_tools_are_all_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finders.shutil, "which", lambda name, path=None: None)
    monkeypatch.setattr(finders.importlib.util, "find_spec", lambda name: None)
    assert "cmake, ninja, pybind11 not found" in sentence_of(finders.find_tools)


def test_an_old_cmake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cmake = program(tmp_path / "cmake", "cmake version 3.22.1")
    monkeypatch.setattr(finders.sysconfig, "get_path", lambda name: str(tmp_path))
    assert f"{cmake} is not CMake 3.24 or later" in sentence_of(finders.find_tools)


@pytest.mark.parametrize(
    ("nvcc", "torch_cuda", "needed"),
    [("12.8", "13.0", "13.0"), ("13.0", "12.8", "12.8"), ("12.4", "12.4", "12.6")],
)
def test_an_nvcc_that_does_not_match_torch(
    nvcc: str, torch_cuda: str, needed: str, toolkit: Callable[[str], None]
) -> None:
    toolkit(nvcc)
    sentence = sentence_of(finders.choose_cuda, finders.Torch(Path("torch"), "2.14.1", torch_cuda))
    assert f"is CUDA {nvcc}, but torch 2.14.1 is built for CUDA {torch_cuda}" in sentence
    assert f"CUDA_HOME=/path/to/cuda-{needed} pip" in sentence and "TRANSCAST_CUDA=0 pip" in sentence


def test_an_nvcc_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDACXX", str(program(tmp_path / "nvcc", "")))
    assert "does not tell its version" in sentence_of(finders.choose_cuda, CUDA_TORCH)


def test_a_wish_for_cuda_is_never_dropped_in_silence(
    toolkit: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSCAST_CUDA", "1")
    assert "is built without CUDA" in sentence_of(finders.choose_cuda, CPU_TORCH)
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    assert "no nvcc in CUDA_HOME=/nonexistent" in sentence_of(finders.choose_cuda, CUDA_TORCH)
    toolkit("13.0")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.5 8.0")
    assert "no FP8 tensor cores before 8.9" in sentence_of(finders.choose_cuda, CUDA_TORCH)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "Hopper")
    assert "'Hopper'; write numbers" in sentence_of(finders.choose_cuda, CUDA_TORCH)
    monkeypatch.setenv("TRANSCAST_CUDA", "yes")
    assert "TRANSCAST_CUDA is 'yes'" in sentence_of(finders.choose_cuda, CUDA_TORCH)


# ---- what a build is for


@pytest.mark.parametrize(
    ("torch", "nvcc", "archs"),
    [
        (finders.Torch(Path("torch"), "2.10.0+cu126", "12.6"), "12.6", ("8.9", "9.0")),
        (finders.Torch(Path("torch"), "2.10.0+cu126", "12.6"), "12.8", ("8.9", "9.0", "10.0", "12.0+PTX")),
        (CUDA_TORCH, "13.0", ("8.9", "9.0", "10.0", "12.0+PTX")),
    ],
)
def test_default_archs(
    torch: finders.Torch, nvcc: str, archs: tuple[str, ...], toolkit: Callable[[str], None]
) -> None:
    toolkit(nvcc)
    cuda = finders.choose_cuda(torch)
    assert cuda.archs == archs
    assert cuda.note == f"built with nvcc {nvcc} for {', '.join(archs)}"


def test_arch_list_narrows_and_says_what_it_dropped(
    toolkit: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit("13.0")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0;9.0a 12.0+PTX")
    cuda = finders.choose_cuda(CUDA_TORCH)
    assert cuda.archs == ("9.0a", "12.0+PTX")
    dropped = "8.0 left out: no FP8 tensor cores before 8.9"
    assert cuda.note == f"built with nvcc 13.0 for 9.0a, 12.0+PTX; {dropped}"


@pytest.mark.parametrize(
    ("wish", "torch", "home", "reason"),
    [
        ("0", CUDA_TORCH, None, "TRANSCAST_CUDA=0"),
        ("", CPU_TORCH, None, "torch 2.14.1+cpu is built without CUDA"),
        ("", CUDA_TORCH, "/nonexistent", "there is no nvcc in CUDA_HOME=/nonexistent"),
    ],
)
def test_left_out_with_the_reason(
    wish: str,
    torch: finders.Torch,
    home: str | None,
    reason: str,
    toolkit: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    toolkit("13.0")
    monkeypatch.setenv("TRANSCAST_CUDA", wish)
    if home:
        monkeypatch.setenv("CUDA_HOME", home)
    assert finders.choose_cuda(torch) == finders.Cuda(None, (), f"left out: {reason}")


# ---- a whole build, of a small stand-in for csrc/


MODULE = """
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", TRANSCAST_CUDA_NOTE, 0, nullptr, {}, {}, {}, {}};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("setup.py", "pyproject.toml", "CMakeLists.txt", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "third_party").mkdir()
    shutil.copy(ROOT / "third_party/finders.py", tmp_path / "third_party")
    (tmp_path / "README.md").write_text("readme")
    (tmp_path / "python/transcast").mkdir(parents=True)
    for name in ("__init__.py", "gone.py"):
        (tmp_path / "python/transcast" / name).write_text("")
    for path in ("ops/op.cpp", "ops/cpu_scope.cpp", "cpu/plain.cpp", "cpu/vector_kernels.cpp"):
        (tmp_path / "csrc" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "csrc" / path).write_text(f"int of_{Path(path).stem}() {{ return 1; }}\n")
    (tmp_path / "csrc/cpu/vector_kernels.cpp").write_text(
        "namespace TRANSCAST_ISA { int one(); int one() { return 1; } }\n"
    )
    (tmp_path / "csrc/module.cpp").write_text(MODULE)
    return tmp_path


def files(folder: Path) -> set[str]:
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {path for path in found if not path.startswith("build/") and "__pycache__" not in path}


def test_a_wheel_holds_what_is_there_now_and_the_tree_stays_clean(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before, out = files(checkout), tmp_path_factory.mktemp("wheels")
    options = ["-v", "--no-build-isolation", "--no-deps", "-w", str(out)]
    pip_wheel = [sys.executable, "-m", "pip", "wheel", *options, "."]
    first = run(*pip_wheel, cwd=checkout, TRANSCAST_CUDA="0")
    assert first.returncode == 0, first.stderr
    assert "    _C:    built\n    _cuda: left out: TRANSCAST_CUDA=0\n" in first.stderr
    assert files(checkout) == before

    (checkout / "python/transcast/gone.py").unlink()
    again = run(*pip_wheel, cwd=checkout, TRANSCAST_CUDA="0")
    assert again.returncode == 0, again.stderr
    assert "Building CXX" in first.stderr and "Building CXX" not in again.stderr
    (wheel,) = out.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("transcast/")}
    assert names == {"transcast/__init__.py", f"transcast/_C{SUFFIX}"}


def test_a_build_without_cuda_removes_the_cuda_library_of_an_earlier_one(checkout: Path) -> None:
    stale = checkout / f"python/transcast/_cuda{SUFFIX}"
    stale.write_text("from an earlier build")
    built = run(sys.executable, "setup.py", "build_ext", "--inplace", cwd=checkout, TRANSCAST_CUDA="0")
    assert built.returncode == 0, built.stdout + built.stderr
    assert built.stdout.splitlines()[-1] == "  _cuda: left out: TRANSCAST_CUDA=0"
    assert not stale.exists() and (checkout / f"python/transcast/_C{SUFFIX}").exists()


def test_a_source_that_does_not_compile_ends_in_one_sentence(checkout: Path) -> None:
    (checkout / "csrc/cpu/plain.cpp").write_text("this is not C++")
    built = run(sys.executable, "setup.py", "build_ext", "--inplace", cwd=checkout, TRANSCAST_CUDA="0")
    assert built.returncode == 1 and "Traceback" not in built.stderr
    last = built.stderr.splitlines()[-1]
    assert last.startswith("transcast: the build failed; mend what the messages above name")
