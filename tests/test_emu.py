"""The emulator as a machine: what its exchanges give, in which order it runs, how its runtime fails."""

from __future__ import annotations

import math
import re
import subprocess

import pytest
import torch

from cases import E4M3, normal, scalar

OPS = torch.ops.transcast_emu
LANES = range(32)


def rows_of(numbers: list[int]) -> list[list[int]]:
    return [numbers[i : i + 32] for i in range(0, len(numbers), 32)]


@pytest.mark.parametrize("schedule", ["forward", "reverse", "random"])
def test_shuffles_and_votes(emu, schedule):
    emu.configure(schedule=schedule)
    shfl, in_segments, xor, xor_in_8, down, down_in_16, up, up_in_16, ballot, some, every, floats = rows_of(
        emu.run_example("warp_values", [])
    )
    assert shfl == [5] * 32
    assert in_segments == [i // 8 * 8 + (i + 1) % 8 for i in LANES]
    assert xor == [i ^ 16 for i in LANES]
    assert xor_in_8 == [i ^ 8 if i ^ 8 < i else i for i in LANES]  # later segments are out of reach
    assert down == [i + 3 if i + 3 < 32 else i for i in LANES]
    assert down_in_16 == [i + 1 if (i + 1) % 16 else i for i in LANES]
    assert up == [i - 3 if i >= 3 else i for i in LANES]
    assert up_in_16 == [i - 1 if i % 16 else i for i in LANES]
    assert ballot == [sum(1 << i for i in LANES if i % 3 == 0)] * 32
    assert some == [1] * 32 and every == [0] * 32
    assert floats == [i ^ 1 for i in LANES]


def order(emu, blocks: int, threads: int, **settings) -> list[int]:
    emu.configure(**settings)
    return emu.run_example("arrival_order", [blocks, threads])


def test_schedules(emu):
    everyone = list(range(3 * 96))
    assert order(emu, 3, 96) == everyone
    assert order(emu, 3, 96, schedule="reverse") == everyone[::-1]
    random = order(emu, 3, 96, schedule="random", seed=1)
    assert sorted(random) == everyone and random != everyone
    assert order(emu, 3, 96, schedule="random", seed=1) == random
    assert order(emu, 3, 96, schedule="random", seed=2) != random
    with pytest.raises(ValueError, match="forward, reverse or random, got backward"):
        emu.configure(schedule="backward")


def test_random_orders_blocks_warps_and_lanes(emu):
    random = [order(emu, 8, 256, schedule="random", seed=seed) for seed in range(6)]
    blocks = {tuple(thread // 256 for thread in one[::256]) for one in random}
    assert len(blocks) == 6
    warps = [[thread // 32 % 8 for thread in one[:256]] for one in random]
    lanes = {tuple(thread % 32 for thread in one[:256] if thread // 32 % 8 == 0) for one in random}
    assert len({tuple(dict.fromkeys(one)) for one in warps}) == 6 and len(lanes) == 6


def test_memory_is_poisoned(emu):
    like = normal((5, 7), torch.float32)
    for poison in (0xA5, 0x3C):
        emu.configure(poison=poison, races=False)
        word = int.from_bytes([poison] * 4, "little")
        assert emu.run_example("shared_poison", []) == [word, word]
        assert (OPS.unwritten(like).view(torch.uint8) == poison).all()


# cudaError_t
OUT_OF_MEMORY, INVALID_FUNCTION, NO_IMAGE = 2, 98, 209
# Devices that nothing has used: launchers ask a device for its figures, and allocate on it, once.
UNUSED = iter(range(8, 16))


def assert_amax_works(emu):
    """Nothing is left of an error, neither in the library nor with the runtime, where torch would find it."""
    x = normal((4, 6), torch.float32)
    assert emu.last_error() == 0
    assert OPS.amax(x) == x.abs().max() and OPS.amax(-2 * x) == (2 * x).abs().max()


def test_a_launch_that_fails_names_call_and_status(emu):
    emu.fail_next("cudaLaunchKernel", NO_IMAGE)
    with pytest.raises(RuntimeError, match="cudaLaunchKernel failed with cudaErrorNoKernelImageForDevice"):
        OPS.amax(normal((4, 6), torch.float32))
    assert_amax_works(emu)


@pytest.mark.parametrize("status", [NO_IMAGE, INVALID_FUNCTION])
def test_an_unsupported_device_is_named_with_what_was_built(emu, status):
    device = next(UNUSED)
    emu.set_device(device)
    emu.fail_next("cudaFuncGetAttributes", status)
    with pytest.raises(RuntimeError) as error:
        OPS.amax(normal((4, 6), torch.float32))
    for part in (f"cuda:{device}", "compute capability 9.0", "for emulated", "FP8 needs 8.9 or later"):
        assert part in str(error.value)
    assert_amax_works(emu)


FIRST_CALLS = ["cudaFuncGetAttributes", "cudaDeviceGetAttribute", "cudaMalloc", "cudaMemsetAsync"]


@pytest.mark.parametrize("function", FIRST_CALLS)
def test_a_first_op_that_fails_leaves_the_device_usable(emu, function):
    emu.set_device(next(UNUSED))
    emu.fail_next(function, OUT_OF_MEMORY)
    with pytest.raises(RuntimeError, match=f"{function} failed with cudaErrorMemoryAllocation: out of mem"):
        OPS.amax(normal((4, 6), torch.float32))
    assert_amax_works(emu)


def test_a_first_op_succeeds_while_another_thread_captures(emu):
    emu.set_device(next(UNUSED))
    emu.configure(another_captures=True)
    assert_amax_works(emu)
    assert emu.calls()["cudaMalloc"] == 1
    assert emu.calls()["cudaThreadExchangeStreamCaptureMode"] == 4  # there and back again, twice


def test_every_stream_has_its_ops(emu):
    for stream in (0, 1, 0, 2):
        emu.set_stream(stream)
        assert_amax_works(emu)


def test_a_launch_gets_48_KiB_of_shared_memory_without_asking_for_more(emu):
    emu.run_example("shared_bytes_of_a_launch", [48 << 10])
    with pytest.raises(RuntimeError, match="cudaLaunchKernel failed with cudaErrorInvalidValue"):
        emu.run_example("shared_bytes_of_a_launch", [(48 << 10) + 1])


def test_a_device_that_was_asked_keeps_its_multiprocessors(emu):
    OPS.amax(normal((4, 6), torch.float32))
    emu.configure(multiprocessors=4)
    with pytest.raises(ValueError, match="device 0 has told launchers that it has 4 multiprocessors"):
        emu.configure(multiprocessors=5)


def test_arithmetic_is_the_devices_own(emu):
    """torch.set_flush_denormal is the calling thread's affair, and stays as it was."""
    x = torch.tensor([1e-40, 3e-41])
    want = OPS.cast(x, scalar(2.0**126), E4M3)
    try:
        assert torch.set_flush_denormal(True)
        got = OPS.cast(x, scalar(2.0**126), E4M3)
        assert (torch.tensor([1e-40]) * 1.0).item() == 0.0
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(got[0].view(torch.uint8), want[0].view(torch.uint8)) and got[0].view(torch.uint8).all()
    assert math.isfinite(got[1].item())


def test_runtime_calls_are_counted(emu):
    OPS.amax(normal((4, 6), torch.float32))
    assert emu.calls()["cudaLaunchKernel"] == 1
    emu.reset()
    assert emu.calls() == {}


def test_no_call_escapes_to_the_real_runtime(emu):
    """torch may have brought a libcudart into the process, which would answer what the stand-in does not."""
    symbols = subprocess.run(["nm", "-D", "--undefined-only", emu.__file__], capture_output=True, text=True)
    assert symbols.returncode == 0 and "aoti_torch_empty_strided" in symbols.stdout
    assert not re.findall(r" U (cu[a-zA-Z]\w*)", symbols.stdout)
