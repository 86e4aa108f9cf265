"""The compiled libraries as they lie there, what importing them costs, and what info() tells of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import torch

import transcast as tc
from cases import OUTPUTS
from transcast import _library, recipes

SUFFIX = EXTENSION_SUFFIXES[0]
LIBRARY = Path(_library._C.__file__)


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=os.environ | environment, text=True, capture_output=True)


def symbols(library: Path) -> set[str]:
    listed = run("nm", "-D", "--undefined-only", str(library))
    assert listed.returncode == 0, listed.stderr
    return {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()}


def test_of_torch_only_the_stable_c_interface_is_used() -> None:
    for library in LIBRARY.parent.glob(f"_*{SUFFIX}"):
        torchs = {name for name in symbols(library) if re.match(r"_ZN?K?(2at|3c10|5torch|6caffe2)", name)}
        assert torchs == set(), library.name
    undefined = symbols(LIBRARY)
    others = {name for name in undefined if not re.match(r"aoti_torch_|torch_|_?Py|_Z|__", name)}
    assert "aoti_torch_library_init_impl" in undefined and "sgemm_" in others


def test_no_path_of_the_building_machine_is_searched() -> None:
    libraries = sorted(LIBRARY.parent.glob(f"_*{SUFFIX}"))
    assert libraries
    for library in libraries:
        read = run("readelf", "-d", str(library))
        assert read.returncode == 0 and "NEEDED" in read.stdout
        assert "RPATH" not in read.stdout and "RUNPATH" not in read.stdout


def test_flags_keep_the_bits() -> None:
    flags = _library.build_info["flags"]
    assert "-ffp-contract=off" in flags and "fast" not in flags.replace("-ffp-contract=off", "")


def test_import_loads_nothing_but_transcast() -> None:
    """Over torch's import time we may take 0.1 s: enough for our own modules, and for nothing else."""
    probe = run(
        sys.executable,
        "-c",
        "import sys, torch; before = set(sys.modules); import transcast\n"
        "print(*sorted(name for name in set(sys.modules) - before if not name.startswith('transcast')))",
    )
    assert probe.returncode == 0, probe.stderr
    others = probe.stdout.split()
    assert not others, f"{len(others)} other modules, torch._dynamo: {'torch._dynamo' in others}"


@pytest.mark.parametrize(
    ("libraries", "message"),
    [
        ([], "is not there; in a checkout"),
        (["_C.cpython-39-x86_64-linux-gnu.so"], "was built for another Python"),
        ([f"_C{SUFFIX}"], "does not load under torch"),
    ],
)
def test_a_library_that_cannot_be_loaded_says_what_to_type(
    libraries: list[str], message: str, tmp_path: Path
) -> None:
    no_libraries = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(Path(_library.__file__).parent, tmp_path / "transcast", ignore=no_libraries)
    for name in libraries:
        (tmp_path / "transcast" / name).write_text("no library")
    probe = run(sys.executable, "-c", "import transcast", PYTHONPATH=str(tmp_path))
    last = probe.stderr.splitlines()[-1]
    assert last.startswith("ImportError: transcast") and message in last
    assert "pip install --no-build-isolation ." in last


# ---- info


def test_info_tells_every_recipe_and_what_is_missing() -> None:
    info = tc.info()
    features = {feature.name: feature for feature in info.features}
    assert features["ops on the CPU"].available
    assert features["ops on the CPU"].note == f"{_library.build_info['isa_in_use']} path"
    assert all(features[f"FP8Linear {name}"].available for name in recipes._DEFAULTS)
    assert not any(features[f"FP8Linear {name}"].available for name in recipes._NOT_YET)
    for name in ("ops on CUDA", "cuBLASLt FP8 GEMM"):
        assert features[name].available == (_library.cuda_unavailable_reason() is None)
    assert info.versions["transcast"] == tc.__version__ == _library.version
    assert info.build["_cuda"] == _library.build_info["cuda_note"]
    assert info.build["stable ABI"] == "serves torch 2.10 and later"


def test_the_reason_why_there_is_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"devices": [], "driver_version": 0, "unavailable": "cudaErrorInsufficientDriver: too old"}

    class Cuda:
        device_facts = staticmethod(lambda: facts)
        gemm_scalings = staticmethod(lambda arch: [])

    monkeypatch.setattr(_library, "cuda", Cuda)
    assert _library.cuda_unavailable_reason() == "no CUDA driver on this machine"
    facts["driver_version"] = 12020
    assert _library.cuda_unavailable_reason() == "cudaErrorInsufficientDriver: too old"
    gpu = {"name": "GPU", "capability": (9, 0), "multiprocessors": 132, "memory_bytes": 141 << 30}
    facts["devices"] = [gpu]
    assert _library.cuda_unavailable_reason() is None
    assert tc.info().devices["cuda:0"] == "GPU, capability 9.0, 132 SMs, 141 GiB"


@pytest.mark.parametrize(
    ("built", "torch_cuda", "reason"),
    [
        ({"cuda": "", "cuda_note": "left out: TRANSCAST_CUDA=0"}, "13.0", "left out: TRANSCAST_CUDA=0"),
        ({"cuda": "13.0.88"}, None, "is built without CUDA"),
        ({"cuda": "13.0.88"}, "12.8", "built for CUDA 13.0.88, but torch"),
    ],
)
def test_a_cuda_library_that_does_not_fit_is_not_loaded(
    built: dict[str, str], torch_cuda: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", torch_cuda)
    module, why_not = _library._load_cuda(built)
    assert module is None and reason in why_not


# Sends every op's calls where CUDA tensors go, which works without a device: the tensors stay on the CPU.
REDISPATCH = """
import sys
sys.modules["transcast._cuda"] = None  # as if it had not been built
import torch, transcast
from test_fakes import op_calls
cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
note = next(feature.note for feature in transcast.info().features if feature.name == "ops on CUDA")
for op, args in op_calls():
    try:
        getattr(torch.ops.transcast, op).default.redispatch(cuda, *args)
    except RuntimeError as error:
        start = f"transcast::{op}: CUDA tensors need the library _cuda, which is not loaded here: {note}. "
        print(op, str(error).startswith(start))
    else:
        print(op, "returned")
"""


def test_cuda_tensors_without_the_cuda_library_are_refused() -> None:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    probe = run(sys.executable, "-c", REDISPATCH, PYTHONPATH=path)
    assert probe.returncode == 0, probe.stderr
    assert set(probe.stdout.splitlines()) == {f"{op} True" for op in OUTPUTS}


def test_info_on_the_command_line_and_as_an_import() -> None:
    printed = run(sys.executable, "-W", "error::RuntimeWarning", "-m", "transcast.info")
    assert printed.returncode == 0 and printed.stderr == ""
    for line in ("versions", "build", "devices", "can run here"):
        assert line in printed.stdout.splitlines()
    assert ["transcast", tc.__version__] in [line.split() for line in printed.stdout.splitlines()]
    imported = run(sys.executable, "-c", "import transcast.info, transcast; print(transcast.info().versions)")
    assert imported.returncode == 0 and tc.__version__ in imported.stdout
