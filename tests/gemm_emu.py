"""What the tests of the GEMM on the emulator share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import Backend

OPS = torch.ops.transcast_emu
EMU = Backend("emu", OPS, torch.device("cpu"))
SHAPE = (24, 32, 48)
ALL_BUT_PLAIN = {2, 4, 6, 32, 36, 160, 164, 192}  # cublasLtEpilogue_t
# Devices of the emulated machine, by compute capability; no test has used those of UNUSED before.
DEVICES = {"9.0": 0, "8.9": 1, "10.0": 2, "12.0": 3}
UNUSED = iter(range(4, 8))


@pytest.fixture(autouse=True)
def fresh(emu: ModuleType) -> Iterator[None]:
    """No plans, default settings; afterwards too."""
    emu.reset()
    emu.configure_cublaslt()
    yield
    emu.configure_cublaslt()


def shifted(x: Tensor, by: int) -> Tensor:
    """A copy whose address is ``by`` bytes behind a multiple of 256."""
    memory = torch.empty(x.numel() * x.element_size() + 512, dtype=torch.uint8)
    start = -memory.data_ptr() % 256 + by
    copy = memory[start : start + x.numel() * x.element_size()].view(x.dtype).view(x.shape)
    copy.view(torch.uint8).copy_(x.view(torch.uint8))
    return copy


def gemm(
    args: list[Tensor],
    bias: Tensor | None = None,
    epilogue: str = "none",
    aux: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    fast_accum: bool = False,
) -> Tensor:
    """All in memory that is as well aligned as a device's: another alignment would be another plan."""
    a, b, *scales = args
    a, b, bias, aux = (x if x is None else shifted(x, 0) for x in (a, b, bias, aux))
    out = shifted(torch.empty(a.shape[0], b.shape[0], dtype=out_dtype), 0)
    OPS.gemm_out(a, b, *scales, bias, epilogue, aux, fast_accum, False, out, None)
    return out


def calls_of(emu: ModuleType, function: Callable[[], Any]) -> Counter[str]:
    """How often ``function`` calls each function of the library, and allocates."""
    before = Counter(emu.calls())
    function()
    return Counter({n.removeprefix("cublasLt"): c for n, c in (Counter(emu.calls()) - before).items()})


def kernels_of(emu: ModuleType, function: Callable[[], Any]) -> list[str]:
    """The kernels and GEMMs that ``function`` launches, without template arguments."""
    emu.count(True)
    before = len(emu.launches())
    function()
    emu.count(False)
    return [launch["kernel"].split("<")[0] for launch in emu.launches()[before:]]
