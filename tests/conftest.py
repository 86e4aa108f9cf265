"""The backend that a run tests, and how results are compared."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor

import cublaslt_replay
import transcast  # noqa: F401  registers torch.ops.transcast
from cases import DTYPES, FORMATS, OUTPUTS, UNSUPPORTED, sum_bound
from emu import build
from transcast import reference
from transcast._reference_act import dact

settings.register_profile("suite", deadline=None, derandomize=True, database=None, max_examples=60)
settings.load_profile("suite")

dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
formats = pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)


ALIGNMENT = 256  # of the addresses that CUDA allocates
LARGE_SPAN = 2**30  # bytes: beyond it, what lies between the elements of a view is not copied


def moved(value: Any, device: torch.device) -> Any:
    """``value`` with every tensor in it, and in its lists and tuples, on ``device``, in the same layout."""
    if isinstance(value, (list, tuple)):
        return type(value)(moved(one, device) for one in value)
    if not isinstance(value, Tensor) or value.device.type == device.type:
        return value
    return laid_out_alike(value, device) if value.layout == torch.strided else value.to(device)


def laid_out_alike(x: Tensor, device: torch.device) -> Tensor:
    """A copy with the strides and the alignment of ``x``, which ``Tensor.to`` gives up.

    What lies between its elements is copied with them.
    """
    x, size = x.detach(), x.element_size()
    span = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride())) if x.numel() else 0
    base = x.untyped_storage().data_ptr() % 16  # of what a test put at an address of its own
    start = (base + x.storage_offset() * size) % ALIGNMENT // size
    memory = torch.empty((start + span) * size, dtype=torch.uint8, device=device)
    copy = memory.view(x.dtype).as_strided(x.shape, x.stride(), start)
    if span * size > LARGE_SPAN and x.numel() < span:
        return copy.copy_(x)
    memory[start * size :].copy_(x.as_strided((span,), (1,)).view(torch.uint8))
    return copy


class DeviceOps:
    """The raw ops. A call with tensors on the CPU alone fails here: torch would run it there, unnoticed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        op = getattr(torch.ops.transcast, name)
        return op if torch.compiler.is_compiling() else DeviceOp(op, self._device)


class DeviceOp:
    """One of ``DeviceOps``."""

    def __init__(self, op: Any, device: torch.device) -> None:
        self._op, self._device = op, device

    def __getattr__(self, overload: str) -> Any:
        return getattr(self._op, overload)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values = (*args, *kwargs.values())
        flat = [x for value in values for x in (value if isinstance(value, (list, tuple)) else [value])]
        devices = {x.device.type for x in flat if isinstance(x, Tensor)}
        assert devices != {"cpu"}, f"{self._op}: no tensor is on {self._device}"
        return self._op(*args, **kwargs)


@dataclass(frozen=True)
class Backend:
    """Where ops run: ``ops`` holds the raw ops, which take tensors on ``device``."""

    name: str
    ops: Any
    device: torch.device

    def run(self, op: str, *args: Any) -> Any:
        """A raw op called with CPU arguments; its results come back on the CPU."""
        return moved(getattr(self.ops, op)(*moved(args, self.device)), torch.device("cpu"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backend", default="cpu", choices=["cpu", "emu", "cuda"], help="where the ops run")
    parser.addoption(
        "--schedule",
        default="forward",
        choices=["forward", "reverse", "random"],
        help="the order in which --backend emu runs threads, warps and blocks",
    )
    parser.addoption("--expect-isa", default=None, help="fail unless the CPU ops run on this instruction set")


def pytest_configure(config: pytest.Config) -> None:
    """A backend that was asked for and is not there is an error: nothing is skipped in silence."""
    name = config.getoption("--backend")
    if name == "emu":
        emulated()
    if name == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError("--backend cuda: torch sees no CUDA device")
    expected = config.getoption("--expect-isa")
    if expected and not any(f.note.startswith(f"{expected} ") for f in transcast.info().features):
        raise pytest.UsageError(f"--expect-isa {expected}: the ops run on another instruction set")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    name = config.getoption("--backend")
    if name == "emu":  # the other tests do not depend on it
        config.hook.pytest_deselected(items=[item for item in items if "backend" not in item.fixturenames])
        items[:] = [item for item in items if "backend" in item.fixturenames]
    if name == "cuda":  # what tests the emulator says nothing about a GPU
        config.hook.pytest_deselected(items=[item for item in items if emulates(item)])
        items[:] = [item for item in items if not emulates(item)]
    unsupported = {case: reason for (backend, case), reason in UNSUPPORTED.items() if backend == name}
    for item in items:
        test = item.name.split("[")[0]
        for case, reason in unsupported.items():
            if case in (item.path.name, test) or ("[" in case and case.strip("[]") in item.name):
                item.add_marker(pytest.mark.skip(reason=reason))


def emulates(item: pytest.Item) -> bool:
    """Whether a test runs on the emulator whichever backend a run has, as in a file with its own ``backend``."""
    return "emu" in item.fixturenames or "backend" in vars(item.module)


@functools.cache
def emulated() -> ModuleType:
    """The CUDA kernels on the CPU, built where that is needed: tests/emu."""
    return build.load(build.build(sanitize=os.environ.get("TRANSCAST_SANITIZE") == "1"))


@pytest.fixture
def emu(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The emulator with the settings of the run, which a test may change."""
    module, schedule = emulated(), request.config.getoption("--schedule")
    module.configure(schedule=schedule)
    yield module
    module.reset()
    module.configure(schedule=schedule)


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    name = request.config.getoption("--backend")
    if name == "emu":
        torch.set_num_threads(1)  # the emulator has one, beside which torch's others would only wait and spin
        emulated().configure(schedule=request.config.getoption("--schedule"))
        yield Backend(name, torch.ops.transcast_emu, torch.device("cpu"))
        if cublaslt_replay.library():
            cublaslt_replay.replay(emulated().cublaslt_record())
    elif name == "cuda":
        yield Backend(name, DeviceOps(torch.device(name)), torch.device(name))
    else:
        yield Backend(name, torch.ops.transcast, torch.device("cpu"))


@pytest.fixture
def thread_count() -> Iterator[None]:
    """Restores torch's thread count after a test that changes it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def bits_of(x: Tensor) -> Tensor:
    """The stored bits of each element, as integers of its size."""
    return x.contiguous().view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    )


def assert_same_bytes(actual: Tensor, expected: Tensor, what: str, *, any_nan: bool = False) -> None:
    """Same shape, dtype and bytes; with ``any_nan`` (high-precision data) one NaN is as good as another."""
    assert actual.dtype == expected.dtype, f"{what}: dtype {actual.dtype}, expected {expected.dtype}"
    assert actual.shape == expected.shape, (
        f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    )
    got, want = bits_of(actual), bits_of(expected)
    bad = got != want
    if any_nan:
        bad &= ~(torch.isnan(actual) & torch.isnan(expected))
    if bad.any():
        where = tuple(bad.nonzero()[0].tolist())
        mask = 256 ** actual.element_size() - 1
        got_bits, want_bits = (hex(t[where].item() & mask) for t in (got, want))
        got_value, want_value = (t.to(torch.float32)[where].item() for t in (actual, expected))
        raise AssertionError(
            f"{what}: {int(bad.sum())} of {bad.numel()} elements differ, first at {where}: "
            f"got {got_bits} ({got_value}), expected {want_bits} ({want_value})"
        )


def assert_within(actual: Tensor, exact: Tensor, bound: Tensor, what: str) -> None:
    """|actual - exact| <= bound element by element; Inf and NaN where ``exact``, once rounded, has them.

    An infinite bound accepts anything: it says that an intermediate result may overflow.
    """
    assert actual.shape == exact.shape, f"{what}: shape {tuple(actual.shape)}, expected {tuple(exact.shape)}"
    got, rounded = actual.to(torch.float64), exact.to(actual.dtype).to(torch.float64)
    same = (got == rounded) | (torch.isnan(got) & torch.isnan(rounded))
    bad = ~(same | ((got - exact).abs() <= bound) | torch.isinf(bound))
    if bad.any():
        where = tuple(bad.nonzero()[0].tolist())
        raise AssertionError(
            f"{what}: {int(bad.sum())} of {bad.numel()} elements out of bound, first at {where}: "
            f"got {got[where].item()}, exact {exact[where].item()}, bound {bound[where].item()}"
        )


def assert_matches_reference(backend: Backend, op: str, *args: Any) -> tuple[Tensor, ...]:
    """Runs a cast-like op: data, scales and amax must have the reference's bytes, sums meet their bound."""
    results, expected = backend.run(op, *args), getattr(reference, op)(*args)
    if isinstance(results, Tensor):
        results, expected = (results,), (expected,)
    assert len(results) == len(OUTPUTS[op])
    for name, got, want in zip(OUTPUTS[op], results, expected):
        if name == "dbias":
            data = act_gradient(*args) if op.startswith("dact") else args[0]
            rows = data.reshape(-1, got.numel()) if got.numel() else data.reshape(0, 0)
            assert_within(got, rows.to(torch.float64).sum(dim=0), sum_bound(rows), f"{op} {name}")
        elif isinstance(got, list):
            for i, (one, other) in enumerate(zip(got, want, strict=True)):
                assert_same_bytes(one, other, f"{op} {name}[{i}]")
        else:
            assert_same_bytes(got, want, f"{op} {name}", any_nan=op == "dequantize")
    return results


def act_gradient(g: Tensor, x: Tensor, *rest: Any) -> Tensor:
    """What a dact op casts, in FP32; ``rest`` is the rest of its arguments."""
    at = next(i for i, value in enumerate(rest) if isinstance(value, str))
    return dact(g, x, rest[at], rest[at + 1] if len(rest) > at + 1 else None)
