"""Ways to time work on a GPU. Each is a ``timing.Timer``; on the CPU all of them are the host's clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from timing import Timer, host_clock

FLUSH_BYTES = 256 << 20  # a few times the largest L2 cache
HOST_CYCLES = 60_000  # of the GPU's clock, some 30 us: above the host's time for one call of an op
MOST_CYCLES = 20_000_000
MANY_CALLS = 50

Call = Callable[[], object]


def _elapsed(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return start.elapsed_time(end) / 1e3


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def eager(call: Call, calls: int) -> float:
    """Calls one after the other, as a training loop makes them: the slower of host and GPU decides."""
    start, end = _events()
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return _elapsed(start, end) / calls


def queued(call: Call, calls: int) -> float:
    """The GPU's own time: it waits until the host is ahead. Calls follow one another, with warm caches."""
    start, end = _events()
    torch.cuda._sleep(min(MOST_CYCLES, HOST_CYCLES * (calls + 4)))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return _elapsed(start, end) / calls


class Cold:
    """The GPU's own time of single calls that find other data in the L2 cache, the median over the calls.

    The other data is read, not written: changed lines would have to be stored at the expense of the call.
    """

    def __init__(self) -> None:
        self.other = torch.zeros(FLUSH_BYTES // 4, device="cuda")

    def __call__(self, call: Call, calls: int) -> float:
        pairs = [_events() for _ in range(calls)]
        torch.cuda._sleep(HOST_CYCLES * 4)
        for start, end in pairs:
            self.other.sum()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(_elapsed(*pair) for pair in pairs)


def enqueuing(call: Call, calls: int) -> float:
    """The host's time per call, where the GPU is not what it waits for: many calls, no synchronization."""
    calls = max(calls, MANY_CALLS)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = (time.perf_counter() - start) / calls
    torch.cuda.synchronize()
    return seconds


@dataclass(frozen=True)
class Clocks:
    eager: Timer
    queued: Timer
    cold: Timer
    enqueuing: Timer


def clocks(device: str) -> Clocks:
    if device == "cpu":
        return Clocks(host_clock, host_clock, host_clock, host_clock)
    return Clocks(eager, queued, Cold(), enqueuing)
