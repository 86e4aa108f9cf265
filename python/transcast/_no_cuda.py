"""CUDA tensors where the library ``_cuda`` is not loaded: each op refuses them and says why it cannot serve them."""

from typing import NoReturn

import torch

from . import _library
from ._fakes import FAKES

_registrations = torch.library.Library("transcast", "IMPL")


def _refuse(op: str) -> NoReturn:
    raise RuntimeError(
        f"transcast::{op}: CUDA tensors need the library _cuda, which is not loaded here: "
        f"{_library.cuda_unavailable_reason()}. Move the tensors to the CPU, or install transcast with its CUDA "
        "library (`python -m transcast.info` shows what was built and what can run)"
    )


if _library.cuda is None:
    for _fake in FAKES:
        _registrations.impl(_fake.__name__, lambda *args, op=_fake.__name__: _refuse(op), "CUDA")
