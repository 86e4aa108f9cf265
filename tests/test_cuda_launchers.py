"""What the launchers of the CUDA kernels choose and keep: slots, kernels, launches, heights of tiles."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import E4M3, E5M2, fp8, normal, scalar
from conftest import Backend, assert_matches_reference, assert_same_bytes, bits_of

OPS = torch.ops.transcast_emu
MEMORY_ALLOCATION = 2  # cudaError_t


@pytest.fixture
def once(emu: Any) -> Backend:
    return Backend("emu", OPS, torch.device("cpu"))


def kernels(emu: Any, function: Callable[[], Any]) -> list[str]:
    """The kernels that ``function`` launches."""
    emu.count(True)
    before = len(emu.launches())
    function()
    return [launch["kernel"] for launch in emu.launches()[before:]]


# --- slots ----------------------------------------------------------------------------------------
# Threads leave slots behind, so that each of these tests has devices of its own.


class Worker:
    """A thread that runs what it is given, as long as the test wants it to live."""

    def __init__(self) -> None:
        self.work: Callable[[], Any] | None = None
        self.result: Any = None
        self.given, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        while self.given.acquire() and self.work:
            try:
                self.result = self.work()
            except Exception as error:
                self.result = error
            self.done.release()

    def run(self, work: Callable[[], Any]) -> Any:
        self.work = work
        self.given.release()
        self.done.acquire()
        return self.result

    def end(self) -> None:
        self.work = None
        self.given.release()
        self.thread.join()
        while Path(f"/proc/self/task/{self.thread.native_id}").exists():  # its slots go after Python's part of it
            time.sleep(0.001)


@pytest.fixture
def workers() -> Any:
    all_of_them = [Worker(), Worker()]
    yield all_of_them
    for worker in all_of_them:
        worker.end()


def slots_zeroed(emu: Any) -> int:
    return emu.calls().get("cudaMemsetAsync", 0)


X = torch.tensor([3.0, -5.0])


def test_a_slot_is_zeroed_once_for_each_thread(emu, workers):
    """And not waited for; a thread that ends leaves its slot to the next one of the same stream."""
    emu.set_device(3)
    for worker in workers:
        before = slots_zeroed(emu)
        for _ in range(5):
            assert worker.run(lambda: OPS.amax(X).item()) == 5.0
        assert slots_zeroed(emu) == before + 1
    assert emu.calls().get("cudaStreamSynchronize", 0) == 0
    workers[0].end()
    workers[0] = Worker()
    before = slots_zeroed(emu)
    assert workers[0].run(lambda: OPS.amax(X).item()) == 5.0
    assert slots_zeroed(emu) == before


def test_each_device_has_slots_of_its_own(emu, workers):
    for device in (4, 5):
        emu.set_device(device)
        before = slots_zeroed(emu)
        assert workers[0].run(lambda: OPS.amax(X).item()) == 5.0
        assert slots_zeroed(emu) == before + 1


@pytest.mark.parametrize("device, function", [(1, "cudaMemsetAsync"), (2, "cudaStreamGetId")])
def test_nothing_is_kept_of_a_slot_that_failed(emu, workers, device, function):
    emu.set_device(device)
    emu.fail_next(function, MEMORY_ALLOCATION)
    error = workers[0].run(lambda: OPS.amax(X))
    assert f"{function} failed with cudaErrorMemoryAllocation" in str(error)
    before = slots_zeroed(emu)
    assert workers[0].run(lambda: OPS.amax(X).item()) == 5.0
    assert slots_zeroed(emu) == before + 1


def test_no_streams_and_no_threads_share_a_slot(emu, once, workers):
    """Their launches may run side by side, in any order: the emulator sees whose memory a launch touches."""
    x = normal((40, 24), torch.bfloat16)
    for stream in (1, 2, 1, 2):
        emu.set_stream(stream)
        for worker in workers:
            results = worker.run(lambda: assert_matches_reference(once, "quantize", x, E4M3))
            assert not isinstance(results, Exception), results


# --- which kernel ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(64, 33), (16, 1019), (8, 3, 5)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_contiguous_data_at_a_whole_chunk_is_aligned(emu, once, shape, dtype):
    """Whatever the length of its rows: 16-byte loads and nothing else."""
    x = normal(shape, dtype)
    assert x.data_ptr() % 16 == 0
    given = (scalar(1.7), E4M3)
    for op, rest in (("amax", ()), ("cast", given), ("quantize", (E5M2,)), ("act_cast", (*given, "silu"))):
        launched = kernels(emu, lambda op=op, rest=rest: getattr(OPS, op)(x, *rest))
        assert all(name.startswith("rows_kernel<") and ", Aligned," in name for name in launched), launched
        if not op.startswith("act"):
            assert_matches_reference(once, op, x, *rest)


@pytest.mark.parametrize(
    "make",
    [
        lambda: normal((5, 33), torch.bfloat16),  # 165 elements
        lambda: normal((65, 33), torch.bfloat16).view(-1)[1 : 1 + 64 * 33].view(64, 33),
        lambda: normal((64, 40), torch.bfloat16)[:, :33],
        lambda: normal((64, 41), torch.bfloat16)[:, :32],
    ],
)
def test_other_data_is_not(emu, make):
    x = make()
    for name in kernels(emu, lambda: (OPS.amax(x), OPS.cast(x, scalar(1.7), E4M3))):
        assert ", Unaligned," in name


def test_two_operands_are_aligned_if_both_are(emu):
    x = normal((65, 33), torch.bfloat16)
    x, odd = x[:64], x.view(-1)[1 : 1 + 64 * 33].view(64, 33)
    for gate, up, access in [(x, x, "Aligned"), (x, odd, "Unaligned"), (odd, x, "Unaligned")]:
        (name,) = kernels(emu, lambda gate=gate, up=up: OPS.act_cast(gate, scalar(1.0), E4M3, "swiglu", up))
        assert f", {access}," in name


@pytest.mark.parametrize("strided", [0, 1])
def test_operands_lose_their_shape_if_all_are_contiguous(emu, once, strided):
    """The largest value is the last one, which a line of so many elements would not reach in rows with gaps."""
    operands = [normal((12, 24), torch.bfloat16, seed) for seed in range(2)]
    wide = normal((12, 40), torch.bfloat16)
    operands[strided] = wide[:, :24].copy_(operands[strided])
    for operand in operands:
        operand[-1, -1] = 50.0
    g, x = operands
    assert_matches_reference(once, "dact_quantize_transpose_dbias", g, x, E5M2, "silu")
    assert_matches_reference(once, "act_quantize", x, E4M3, "swiglu", g)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("elements", [1, 7, 513, 4095, 4096 + 16])
@pytest.mark.parametrize("offset", [0, 1, 8, 15])
def test_dequantize_takes_contiguous_codes_of_any_address_in_chunks(emu, once, dtype, elements, offset):
    q = fp8((8192,), E4M3)[offset : offset + elements]
    (name,) = kernels(emu, lambda: OPS.dequantize(q, scalar(1.7), dtype))
    access = "Aligned" if q.data_ptr() % 16 == 0 and elements % 16 == 0 else "Unaligned"
    assert name.startswith("chunks_kernel<") and name.endswith(f", {access}>")
    assert_matches_reference(once, "dequantize", q, scalar(1.7), dtype)


@pytest.mark.parametrize("size", [150_001, 150_000])
@pytest.mark.parametrize("offset", [0, 3])
def test_dequantize_where_blocks_take_several_turns(emu, once, size, offset):
    """8 blocks of 4096 codes, 4 at a time (2 if not aligned): the second turn begins at 131,072 (65,536)."""
    emu.set_device(6)
    emu.configure(multiprocessors=1)
    q = fp8((150_016,), E4M3)[offset : offset + size]
    for dtype in (torch.bfloat16, torch.float32):
        assert_matches_reference(once, "dequantize", q, scalar(1.7), dtype)


# --- how many launches ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "aligned, ragged, launches",
    [(3, 0, 2), (0, 3, 2), (1, 1, 4), (30, 30, 4)],
)
def test_one_ragged_matrix_does_not_slow_the_others_down(emu, once, aligned, ragged, launches):
    xs = [normal((1 + i % 3, 8 * (1 + i % 2)), torch.bfloat16, i) for i in range(aligned)]
    xs += [normal((1 + i % 3, 3), torch.bfloat16, i) for i in range(ragged)]
    xs = xs[::2] + xs[1::2]
    names = kernels(emu, lambda: OPS.multi_quantize_transpose(xs, E4M3))
    assert len(names) == launches
    assert any("Aligned" in name.replace("Unaligned", "") for name in names) == bool(aligned)
    assert any("Unaligned" in name for name in names) == bool(ragged)
    assert_matches_reference(once, "multi_quantize_transpose", xs, E4M3)


# --- how large ------------------------------------------------------------------------------------


def test_more_blocks_than_a_launch_takes_are_refused(emu):
    """Only an expanded tensor has so many elements: its rows share their memory."""
    x = torch.tensor([[-7.0]]).expand(2**37, 1)
    with pytest.raises(ValueError, match="x may take at most 2147483647 blocks .* this one takes 4294967296"):
        OPS.amax(x)
    assert kernels(emu, lambda: OPS.amax(x[: 2**12])) == ["rows_kernel<Plain<F32>, Unaligned, NoCodes>"]


# --- sums -----------------------------------------------------------------------------------------


def dbias_on(
    emu: Any, device: int, multiprocessors: int, call: Callable[[], tuple[Tensor, ...]]
) -> tuple[Tensor, int]:
    """The sums that a device of so many multiprocessors makes, and the number of its tiles."""
    emu.set_device(device)
    emu.configure(multiprocessors=multiprocessors)
    emu.count(True)
    before = len(emu.launches())
    dbias = call()[3]
    tiles = next(one["grid"][0] for one in emu.launches()[before:] if one["kernel"].startswith("tiles"))
    return dbias, tiles


@pytest.mark.parametrize("shape", [(1024, 512), (1000, 130), (100, 300), (17, 24)])
def test_sums_do_not_depend_on_the_device(emu, shape):
    """Small tiles for many multiprocessors, large ones for few: the same additions in the same order."""
    x = normal(shape, torch.float32)
    calls = {
        "plain": lambda: OPS.cast_transpose_dbias(x, scalar(1.0), E5M2),
        "swiglu": lambda: OPS.dact_cast_transpose_dbias(x.flip(0), x, scalar(1.0), E5M2, "swiglu", x.flip(1)),
    }
    for name, call in calls.items():
        few, few_tiles = dbias_on(emu, 6, 1, call)
        some, _ = dbias_on(emu, 0, 4, call)
        many, many_tiles = dbias_on(emu, 7, 132, call)
        assert_same_bytes(few, some, f"{name}, 1 and 4 multiprocessors")
        assert_same_bytes(few, many, f"{name}, 1 and 132 multiprocessors")
        assert many_tiles > few_tiles or shape[0] <= 32
        assert bits_of(few).unique().numel() > 1
