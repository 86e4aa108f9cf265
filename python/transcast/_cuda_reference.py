"""CUDA tensors where _cuda is not there: the reference functions serve them. Right bits, slow, and said so once."""

import functools
import warnings

import torch

from . import _library, reference
from ._fakes import FAKES

SERVED = tuple(fake.__name__ for fake in FAKES) if _library.cuda is None else ()

_registrations = torch.library.Library("transcast", "IMPL")


@functools.cache
def _warn() -> None:
    warnings.warn(
        f"transcast has no CUDA kernels here ({_library.cuda_unavailable_reason()}); FP8 ops on CUDA tensors run on the "
        "plain-torch reference, which gives the right bits but is slower than BF16",
        stacklevel=3,
    )


def _serve(function):
    @functools.wraps(function)
    def run(*args):
        _warn()
        return function(*args)

    return run


for _name in SERVED:
    _registrations.impl(_name, _serve(getattr(reference, _name)), "CUDA")
