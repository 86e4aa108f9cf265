"""What this installation is and what of it can run here."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass

import torch

from transcast import _library, recipes


@dataclass(frozen=True)
class Feature:
    """One capability: whether it can run here, and how or why not."""

    name: str
    available: bool
    note: str


@dataclass(frozen=True)
class Info:
    """Result of :func:`info`; ``print`` it, or read its fields."""

    versions: dict[str, str]
    build: dict[str, str]
    devices: dict[str, str]
    features: tuple[Feature, ...]

    def __str__(self) -> str:
        sections = {
            "versions": self.versions,
            "build": self.build,
            "devices": self.devices,
            "can run here": {
                feature.name: f"{'yes' if feature.available else 'no'}: {feature.note}"
                for feature in self.features
            },
        }
        width = max(len(name) for rows in sections.values() for name in rows) + 2
        lines = []
        for title, rows in sections.items():
            lines.append(title)
            lines += [f"  {name:<{width}}{text}" for name, text in rows.items()]
        return "\n".join(lines)


def info() -> Info:
    """Versions, what was built and left out, the devices seen, and for each feature whether it can run here.

    Returns:
        Info: ``versions``, ``build`` and ``devices`` (name to text), and ``features``, a tuple of ``Feature``
        (``name``, ``available``, ``note``). Its ``str`` is what ``python -m transcast.info`` prints.
    """
    return Info(_versions(), _build(), _devices(), _features())


def gemm_plans() -> list[dict[str, int | str]]:
    """The cuBLASLt plans of this process, most recently used first; empty without CUDA.

    Returns:
        One dict per plan: ``device`` (index), ``description`` (the whole descriptor in one line), ``candidates`` (how
        many algorithms the heuristic offered), ``chosen`` (the one in use, from 0; -1 if there is none and the product
        takes another way), ``workspace_bytes`` and ``calls``.
    """
    return _library.cuda.gemm_plans() if _library.cuda is not None else []


def gemm_support() -> list[dict[str, str]]:
    """How FP8 GEMMs of CUDA tensors are computed, as one table; empty without the CUDA library.

    Returns:
        One dict per rule, in the order in which they are asked: the first that applies decides. ``archs`` (compute
        capabilities), ``library`` (oldest cuBLASLt), ``scaling``, ``operands`` (formats of a and b), ``epilogues``,
        ``outputs`` (dtypes), ``way`` (``native``: one cublasLtMatmul; ``fallback``: a GEMM and one kernel behind it;
        ``refused``: ValueError) and ``why``.
    """
    return _library.cuda.gemm_support() if _library.cuda is not None else []


def _versions() -> dict[str, str]:
    return {
        "transcast": _library.version,
        "torch": str(torch.__version__),
        "torch's CUDA": torch.version.cuda or "none, a build without CUDA",
        "Python": platform.python_version(),
        "system": platform.platform(),
    }


def _build() -> dict[str, str]:
    built = _library.build_info
    target = int(built["stable_abi"], 16)
    return {
        "_C": f"built with {built['compiler']} against torch {built['torch']}",
        "_cuda": built["cuda_note"],
        "stable ABI": f"serves torch {target >> 56}.{target >> 48 & 0xFF} and later",
        "CPU paths": built["isas"],
        "compiler flags": built["flags"],
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _devices() -> dict[str, str]:
    devices = {"cpu": f"{_cpu_name()}, {torch.get_num_threads()} threads in torch"}
    if _library.cuda is not None and _library.cuda_unavailable_reason() is None:
        for index, device in enumerate(_library.cuda.device_facts()["devices"]):
            devices[f"cuda:{index}"] = _described(
                device["name"], device["capability"], device["multiprocessors"], device["memory_bytes"]
            )
    elif torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            seen = torch.cuda.get_device_properties(index)
            devices[f"cuda:{index}"] = _described(
                seen.name, (seen.major, seen.minor), seen.multi_processor_count, seen.total_memory
            )
    else:
        devices["cuda"] = f"none: {_no_cuda_tensors()}"
    return devices


def _described(name: str, capability: tuple[int, int], multiprocessors: int, memory_bytes: int) -> str:
    arch = "{}.{}".format(*capability)
    return f"{name}, capability {arch}, {multiprocessors} SMs, {memory_bytes / 2**30:.0f} GiB"


def _no_cuda_tensors() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return _library.cuda_unavailable_reason() or "torch sees no CUDA device"


def _features() -> tuple[Feature, ...]:
    why_not = _library.cuda_unavailable_reason()
    formats = "e4m3 forward, e5m2 gradients, on every device that the ops serve"
    return (
        Feature("ops on the CPU", True, f"{_library.build_info['isa_in_use']} path"),
        Feature("ops on CUDA", why_not is None, why_not or f"kernels for {_library.build_info['cuda_archs']}"),
        *_gemms(why_not),
        *(Feature(f"FP8Linear {name}", True, formats) for name in recipes._DEFAULTS),
        *(Feature(f"FP8Linear {name}", False, "not in this version") for name in recipes._NOT_YET),
        _compile(),
    )


def _gemms(why_not: str | None) -> list[Feature]:
    """Whether FP8 GEMMs run, and for each granularity of scales how, on every kind of device that is there."""
    name = "cuBLASLt FP8 GEMM"
    if why_not is not None:
        return [Feature(name, False, why_not)]
    note = "transcast.gemm_support() has the whole table, transcast.gemm_plans() what was computed"
    features = [Feature(name, True, note)]
    archs = {device["capability"] for device in _library.cuda.device_facts()["devices"]}
    for major, minor in sorted(archs):
        for scaling, way, why in _library.cuda.gemm_scalings(10 * major + minor):
            features.append(Feature(f"{scaling} scales on {major}.{minor}", way != "refused", f"{way}: {why}"))
    return features


def _compile() -> Feature:
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if compiler is None:
        return Feature("torch.compile", False, "CPU code needs a C++ compiler: no g++ or clang++ is found")
    return Feature("torch.compile", True, f"fullgraph, dynamic token counts; CPU code through {compiler}")
