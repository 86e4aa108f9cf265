"""The marks on an H200, and what rows say about them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

COPY = "its copy"  # a mark against it is a share of the ceiling
BIG = [(4096, 4096), (8192, 8192), (16384, 4096)]


@dataclass(frozen=True)
class Target:
    """``ours`` is at least ``ratio`` times as fast as ``peer``, in the row of this op, shape and dtype.

    An empty shape stands for the row's only one.
    """

    op: str
    shape: tuple[int, ...]
    dtype: str
    peer: str
    ratio: float
    how: str

    def measured(self, entries: list[dict]) -> float | None:
        times = {}
        for entry in entries:
            here = entry.get("op") == self.op and entry.get("how") == self.how and entry.get("us")
            if here and entry["dtype"] == self.dtype and self.shape in ((), tuple(entry["shape"])):
                times[entry["contender"]] = entry
        if "ours" not in times:
            return None
        if self.peer == COPY:
            return times["ours"]["percent_of_ceiling"] / 100
        return times[self.peer]["us"] / times["ours"]["us"] if self.peer in times else None


CASTS = product(("cast", "cast_transpose"), BIG, ("bf16", "fp32"))
TARGETS = [
    *(Target(op, shape, dtype, COPY, 0.85, "cold") for op, shape, dtype in CASTS),
    # 2 bytes in and 1 byte out in each orientation: 4 per element.
    *(Target("quantize_transpose", shape, "bf16", COPY, 0.75, "cold") for shape in BIG),
    Target("gemm", (8192,) * 3, "bf16", "matmul bf16", 1.8, "queued"),
    Target("linear", (4096,) * 3, "bf16", "nn.Linear", 1.4, "eager"),
    Target("linear", (8192,) * 3, "bf16", "nn.Linear", 1.6, "eager"),
    Target("decoder_layer", (), "bf16", "nn.Linear", 1.35, "eager"),
    Target("linear_host", (), "bf16", "nn.Linear", 1 / 1.5, "enqueuing"),
]


def verdicts(entries: list[dict]) -> list[dict]:
    """Each mark with what was measured: met, missed or not measured. Dry figures measure nothing.

    Of several rows the last one counts: the full benchmarks repeat what the first pass has.
    """
    entries = [entry for entry in entries if entry.get("scope") != "dry"]
    found = []
    for target in TARGETS:
        ratio = target.measured(entries)
        verdict = "not measured" if ratio is None else "met" if ratio >= target.ratio else "missed"
        label = " ".join(filter(None, [target.op, "x".join(map(str, target.shape)), target.dtype]))
        entry = {
            "mark": label,
            "against": target.peer,
            "wanted": target.ratio,
            "got": ratio,
            "verdict": verdict,
        }
        found.append(entry)
    return found
