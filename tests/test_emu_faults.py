"""The emulator is judged by the faults it catches: each kernel of tests/emu/kernels, wrong and right."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from cases import E4M3, normal, scalar
from conftest import emulated

SCHEDULES = ["forward", "reverse", "random"]

NOT_PUBLISHED = "missing: a fence and an atomic of that block"
# Kernel -> what the emulator says when it is wrong.
FAULTS = {
    "missing_barrier": "shared memory read before it is written|shared race",
    "divergent_barrier": "divergent barrier: thread \\d+ waits at barriers.cu:\\d+",
    "skipped_barrier": "a barrier that not all threads reach: 32 of 96",
    "barrier_in_a_loop": "a barrier that not all threads reach: 64 of 96",
    "deadlock": "deadlock: 72 threads wait at a barrier",
    "mask_with_exited_lanes": "a lane of the mask has exited: lane \\d+ of mask 0xffffffff",
    "lane_outside_of_its_mask": "a lane outside of the mask it calls with: mask 0xffff",
    "masks_that_differ": "lanes of one mask meet in different calls",
    "calls_that_differ": "lanes of one mask meet in different calls: lane \\d+ waits at warps.cu:\\d+",
    "shuffle_distance": "shuffle reads a lane outside of its mask: lane \\d+, mask 0xff",
    "missing_syncwarp": "shared memory read before it is written|shared race",
    "syncwarp_of_too_few_lanes": "shared memory read before it is written|shared race",
    "overwritten_while_read": "shared race: byte 0 was read",
    "read_before_write": "shared memory read before it is written: byte 20",
    "outside_of_the_struct": "shared access outside of the struct: bytes 320 to 321 of 320",
    "misaligned_shared_access": "misaligned shared access: 16 bytes at byte 8",
    "struct_larger_than_the_launch_says": "shared struct is larger than the launch allows: 320 > 319",
    "two_writers_of_a_word": "shared race: thread \\d+ wrote byte 0",
    "two_writers_of_a_byte": "shared race: thread \\d+ wrote byte 256",
    "overwritten_for_the_next_round": "shared race: (thread 0 wrote byte 0|byte 0 was read)",
    "misaligned_global_access": "misaligned global access: 8 bytes at",
    "load_one_beyond": "global access outside of every tensor and workspace: 4 bytes",
    "store_one_beyond": "global access outside of every tensor and workspace: 4 bytes",
    "store_to_a_read_only_argument": "store to a read-only argument",
    "load_of_what_nothing_has_written": "global memory read before anything has written it: 4 bytes",
    "atomic_on_what_nothing_has_written": "global memory read before anything has written it: 4 bytes",
    "two_blocks_store_a_byte": "byte stored twice: before by thread \\d+ of the \\d+th block",
    "two_threads_store_a_byte": "byte stored twice: before by thread \\d+ of this block",
    "plain_load_after_a_store": "plain load of what this launch stores",
    "store_after_a_plain_load": "store to what this launch has read by a plain load",
    "lost_atomic": "store to what this launch has read by a plain load",
    "weakened_atomic": "store over other blocks' atomics|atomic on what nothing orders before it",
    "plain_load_of_an_atomic": "plain load of what this launch changes by atomics",
    "handover_without_barrier_before": f"nothing orders before it.*{NOT_PUBLISHED}",
    "handover_without_fence_before": f"nothing orders before it.*{NOT_PUBLISHED}",
    "handover_with_store_behind_fence": f"ldcg of what nothing orders.*{NOT_PUBLISHED}",
    "handover_without_fence_after": "nothing orders before it.*a fence here after the atomic",
    "handover_without_barrier_after": "nothing orders before it.*or a barrier after that fence",
    "reset_by_a_block_that_is_not_last": "that nothing orders before it|on what nothing orders before it",
    "ldcg_without_handover": "ldcg of what nothing orders before it|store over a read that nothing orders",
    "store_over_what_other_blocks_read": f"store over a read that nothing orders before it.*{NOT_PUBLISHED}",
    "exchange_of_what_other_blocks_read": f"exchange over a read that nothing orders.*{NOT_PUBLISHED}",
    "store_over_what_a_neighbour_reads": "(ldcg of what|over a read that) nothing orders.*: a barrier",
}
# Kernels that only show what something gives, and a fault that ends the process.
OTHERS = {
    "arrival_order",
    "global_pattern",
    "rows_of_a_sector",
    "shared_access_without_lds",
    "shared_bytes_of_a_launch",
    "shared_pattern",
    "shared_poison",
    "store_to_an_address",
    "store_to_memory_of_the_runtime",
    "two_passes",
    "warp_values",
}


def test_every_kernel_is_tested(emu):
    assert set(emu.example_names()) == FAULTS.keys() | OTHERS


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_caught_and_its_right_twin_passes(emu, name, schedule):
    emu.configure(schedule=schedule, seed=3)
    with pytest.raises(RuntimeError) as error:
        emu.run_example(name, [True])
    message = str(error.value)
    assert re.match(r"emulated kernel \w+_kernel(<.+>)?:\n  ", message), message
    assert re.search(FAULTS[name], message, re.S), message
    assert re.search(r"\(\w+\.cu:\d+, block \d+,0,0, thread \d+\)", message), message
    emu.run_example(name, [False])


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", [name for name in FAULTS if re.match("handover(?!_with_store)", name)])
def test_handover_of_an_atomic(emu, name, schedule):
    emu.configure(schedule=schedule)
    with pytest.raises(RuntimeError, match="exchange over atomics that nothing orders before it"):
        emu.run_example(name, [True, True])
    out, largest, ticket = emu.run_example(name, [False, True])
    assert (out, largest, ticket) == (5 * 64 - 1, 0, 0)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_handover_gives_the_sum(emu, schedule):
    emu.configure(schedule=schedule)
    out, _, ticket = emu.run_example("handover_without_fence_after", [False])
    assert (out, ticket) == (sum(64 * block + 1 for block in range(5)), 0)


ANOTHER = "memory of another stream or thread of the host: 4 bytes"


def test_memory_of_the_runtime_belongs_to_a_stream_and_a_thread(emu):
    """Launches of others may run at the same time. Only the end of the thread changes that."""
    emu.run_example("store_to_memory_of_the_runtime", [0])
    with ThreadPoolExecutor(1) as thread, pytest.raises(RuntimeError, match=ANOTHER):
        thread.submit(emu.run_example, "store_to_memory_of_the_runtime", [0]).result()
    emu.reset()
    emu.set_stream(1)
    emu.run_example("store_to_memory_of_the_runtime", [1])
    with pytest.raises(RuntimeError, match=ANOTHER):
        emu.run_example("store_to_memory_of_the_runtime", [0])
    emu.set_stream(0)
    emu.run_example("store_to_memory_of_the_runtime", [0])


def test_what_a_refused_op_leaves_behind_is_forgotten(emu):
    """Its memory: kernels of the thread's next op might touch it unnoticed."""
    x = normal((4, 6), torch.bfloat16)
    with pytest.raises(ValueError):
        torch.ops.transcast_emu.cast(x, scalar(1.0).double(), E4M3)
    emu.reset()
    with pytest.raises(RuntimeError, match="outside of every tensor"):
        emu.run_example("store_to_an_address", [x.data_ptr()])


def test_faults_of_one_kind_at_one_place_are_counted(emu):
    with pytest.raises(RuntimeError) as error:
        emu.run_example("store_after_a_plain_load", [True])
    assert str(error.value).count("\n") == 1 and "and 31 more of this kind there" in str(error.value)


def test_without_the_watch_races_pass(emu):
    emu.configure(races=False)
    emu.run_example("missing_barrier", [True])
    emu.run_example("two_blocks_store_a_byte", [True])
    with pytest.raises(RuntimeError, match="outside of every tensor"):
        emu.run_example("load_one_beyond", [True])


def test_shared_memory_accessed_without_lds_ends_the_process(emu):
    code = (
        "import sys, torch; from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[1]); from emu import build\n"
        "emu = build.load(Path(sys.argv[2]))\n"
        "emu.run_example('shared_access_without_lds', [False])\n"
        "print('right twin', flush=True)\n"
        "emu.run_example('shared_access_without_lds', [True])\n"
        "print('wrong twin')\n"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), emulated().__file__]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.stdout == "right twin\n" and result.returncode != 0, result.stderr
