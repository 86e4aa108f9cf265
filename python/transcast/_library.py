"""Loads the compiled libraries: ``_C`` always, ``_cuda`` where it can be, else the reason why not is kept."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import torch  # first: the libraries find torch's symbols, and CUDA's runtime, in the process

_INSTALL = "pip install --no-build-isolation ."


def _why_not_loaded(error: ImportError, folder: Path) -> str:
    built = sorted(path.name for path in folder.glob("_C*.so"))
    if not built:
        return f"transcast's compiled library is not there; in a checkout of transcast type `{_INSTALL}`"
    if not any((folder / f"_C{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
        return (
            f"transcast was built for another Python: there is {', '.join(built)}, this Python needs "
            f"_C{EXTENSION_SUFFIXES[0]}; in a checkout of transcast type `{sys.executable} -m {_INSTALL}`"
        )
    return (
        f"transcast's library does not load under torch {torch.__version__} (it needs 2.10 or later): "
        f"{error}; in a checkout of transcast type `{_INSTALL}`"
    )


def _load_c() -> ModuleType:
    try:
        return importlib.import_module("transcast._C")
    except ImportError as error:
        raise ImportError(_why_not_loaded(error, Path(__file__).parent)) from None


def _load_cuda(built: dict[str, str]) -> tuple[ModuleType | None, str]:
    if not built["cuda"]:
        return None, built["cuda_note"]
    if torch.version.cuda is None:
        return None, f"torch {torch.__version__} is built without CUDA"
    if built["cuda"].split(".")[0] != torch.version.cuda.split(".")[0]:
        # It might load, with a second CUDA runtime beside torch's, and then fail in ways nobody can read.
        return None, (
            f"built for CUDA {built['cuda']}, but torch {torch.__version__} is built for CUDA "
            f"{torch.version.cuda}; in a checkout of transcast type `{_INSTALL}`"
        )
    try:
        return importlib.import_module("transcast._cuda"), ""
    except ImportError as error:
        return None, f"built, but it does not load under torch {torch.__version__}: {error}"


_C = _load_c()
build_info: dict[str, str] = _C.build_info()
version: str = build_info["version"]
cuda, _cuda_reason = _load_cuda(build_info)


def cuda_unavailable_reason() -> str | None:
    """Why transcast's CUDA library cannot be used here, or ``None`` if it is loaded and sees a device."""
    if cuda is None:
        return _cuda_reason
    facts = cuda.device_facts()
    if facts["devices"]:
        return None
    return "no CUDA driver on this machine" if facts["driver_version"] == 0 else facts["unavailable"]
