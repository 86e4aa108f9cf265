"""Times contenders in alternation, so that a change of the machine's speed meets all of them alike."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

SAMPLE_S = 2e-3  # shortest sample: far above the clock's resolution and the cost of reading it
BUDGET_S = 3.0  # a contender that would take longer in all rounds together is sampled in fewer of them
ONCE_S = 3.0  # a call this long is timed once
UNSURE_S = 0.1  # below, the scheduler may have taken most of a first guess: guess again

Timer = Callable[[Callable[[], object], int], float]  # a call and how often to call it -> seconds per call


def host_clock(call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


@dataclass
class Contender:
    """One way to compute a row.

    ``around`` is entered before a sample is timed; ``missing`` says why there are no samples.
    """

    name: str
    call: Callable[[], object] | None
    around: Callable[[], AbstractContextManager] = nullcontext
    note: str = ""
    missing: str = ""
    samples: list[float] = field(default_factory=list, repr=False)  # seconds per call

    @property
    def us(self) -> float | None:
        return statistics.median(self.samples) * 1e6 if self.samples else None

    def sample(self, calls: int, timer: Timer = host_clock) -> float:
        with self.around():
            return timer(self.call, calls)


@dataclass
class _Plan:
    contender: Contender
    calls: int  # per sample
    samples: int
    timer: Timer

    def due(self, turn: int, rounds: int) -> bool:
        """Spreads the samples evenly over the rounds."""
        return (turn + 1) * self.samples // rounds > turn * self.samples // rounds

    def take(self) -> None:
        self.contender.samples.append(self.contender.sample(self.calls, self.timer))


def _plan(contender: Contender, rounds: int, timer: Timer) -> _Plan:
    """One call to warm up (and to compile), one to learn how long a call takes."""
    contender.sample(1, timer)
    seconds = contender.sample(1, timer)
    if seconds >= ONCE_S:
        contender.samples.append(seconds)
        return _Plan(contender, 1, 0, timer)
    if seconds < UNSURE_S:
        for _ in range(3):
            seconds = min(seconds, contender.sample(max(1, round(SAMPLE_S / 4 / seconds)), timer))
    calls = max(1, math.ceil(SAMPLE_S / seconds))
    affordable = int(BUDGET_S / (calls * seconds))
    return _Plan(contender, calls, min(rounds, max(3, affordable)), timer)


def measure(contenders: list[Contender], rounds: int, timer: Timer = host_clock) -> None:
    """Fills ``samples`` of every contender: A B C A B C ..., ``rounds`` times.

    The first of the list is the one to be judged, and its error is raised. Another one that fails becomes
    missing, with its error as the reason.
    """

    def attempt(contender: Contender, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            if contender is contenders[0]:
                raise
            contender.samples.clear()
            contender.missing = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"

    plans: list[_Plan] = []
    for contender in contenders:
        if contender.call is not None:
            attempt(contender, lambda c=contender: plans.append(_plan(c, rounds, timer)))
    collecting = gc.isenabled()
    gc.disable()  # a collection would hit one sample of one contender
    try:
        for turn in range(rounds):
            for plan in plans:
                if plan.due(turn, rounds) and not plan.contender.missing:
                    attempt(plan.contender, plan.take)
    finally:
        if collecting:
            gc.enable()
