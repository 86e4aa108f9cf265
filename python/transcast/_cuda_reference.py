"""CUDA tensors without CUDA kernels: the reference functions serve them. Right bits, slow, and said so once."""

import functools
import warnings

import torch

from . import reference
from ._fakes import FAKES

_library = torch.library.Library("transcast", "IMPL")


@functools.cache
def _warn() -> None:
    warnings.warn(
        "transcast: this version has no CUDA kernels; FP8 ops on CUDA tensors run on the plain-torch reference, "
        "which gives the right bits but is slower than BF16 (see `python -m transcast.info`)",
        stacklevel=3,
    )


def _serve(function):
    @functools.wraps(function)
    def run(*args):
        _warn()
        return function(*args)

    return run


for _fake in FAKES:
    _library.impl(_fake.__name__, _serve(getattr(reference, _fake.__name__)), "CUDA")
