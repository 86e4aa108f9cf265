"""The memory-bound kernels against the speed of a copy, from a cold L2 cache."""

from __future__ import annotations

import cases
import peers
import rows
import torch
import transcast as tc
from clocks import clocks
from record import Step
from timing import Contender
from torch import Tensor

# By value: what has a mark comes first.
MARKED = ["cast", "cast_transpose", "quantize_transpose"]
OTHERS = ["quantize", "amax", "quantize_transpose_dbias", "cast_transpose_dbias", "act_quantize_transpose"]
OTHERS += ["dact_quantize_transpose_dbias", "dequantize", "transpose"]
SHAPES = {
    "full": [(4096, 4096), (8192, 8192), (16384, 4096), (4099, 4093)],
    "quick": [(4096, 4096), (8192, 8192)],
    "dry": [(64, 48)],
}
COMPILED = [
    "quantize_transpose",
    "quantize",
]  # whose peers are compiled, too, at the first shape: that takes long
COPY_BYTES = {"full": 2 << 30, "quick": 2 << 30, "dry": 1 << 20}
# (out, in) of the linear layers of a decoder layer of Llama 3 8B.
WEIGHTS = [
    (4096, 4096),
    (1024, 4096),
    (1024, 4096),
    (4096, 4096),
    (14336, 4096),
    (14336, 4096),
    (4096, 14336),
]


def with_dbias(op: str, shape: tuple[int, ...], dtype: str) -> rows.Row:
    """cast_transpose or quantize_transpose with the column sums of the input."""
    x = torch.randn(shape).to(cases.DTYPES[dtype])
    given = () if op.startswith("quantize") else (torch.tensor(1.7),)
    composite, ours = getattr(peers, op.removesuffix("_dbias")), getattr(tc, op)

    def eager() -> tuple[Tensor, ...]:
        return *composite(x, *given, tc.E5M2), x.sum(dim=0, dtype=torch.float32)

    contenders = [Contender("eager", eager)]
    return rows.memory_row(op, shape, dtype, x, lambda: ours(x, *given, tc.E5M2), contenders)


def transpose(op: str, shape: tuple[int, ...], dtype: str) -> rows.Row:
    q = tc.quantize(torch.randn(shape), tc.E4M3).q
    others = [Contender("eager", lambda: q.view(torch.uint8).t().contiguous())]
    return rows.memory_row(op, shape, "fp8", q, lambda: tc.transpose(q), others)


BUILDERS = {
    "quantize_transpose_dbias": with_dbias,
    "cast_transpose_dbias": with_dbias,
    "transpose": transpose,
}


def build(op: str, shape: tuple[int, ...], dtype: str, compiled: bool = False) -> rows.Row:
    if op not in BUILDERS:
        row = rows.build(op, shape, dtype)
        if not compiled:
            row.peers = [peer for peer in row.peers if peer.name != "compile"]
        return row
    torch.manual_seed(0)
    return BUILDERS[op](op, shape, dtype)


def all_weights(shapes: list[tuple[int, int]]) -> rows.Row:
    """The weights of a decoder layer in one call, against one call each."""
    weights = [torch.randn(shape, dtype=torch.bfloat16) for shape in shapes]
    flat = torch.cat([w.flatten() for w in weights])

    def one_by_one() -> list:
        return [tc.quantize_transpose(w, tc.E4M3) for w in weights]

    copy = rows.copy_of(flat)
    ours = Contender("ours", lambda: tc.multi_quantize_transpose(weights, tc.E4M3))
    others = [copy, Contender("one by one", one_by_one)]
    work = 2 * rows.size(flat)  # 2 bytes in, 1 and 1 out
    shape = (len(weights), flat.numel())
    return rows.Row("multi_quantize_transpose", shape, "bf16", ours, others, copy, work, work)


def ceiling(bytes_: int) -> rows.Row:
    """A copy much larger than any cache."""
    copy = rows.copy_of(torch.empty(bytes_, dtype=torch.uint8).random_())
    return rows.Row("copy", (bytes_,), "uint8", copy, [], copy, 2 * bytes_, 2 * bytes_)


def run(step: Step) -> None:
    timers = clocks(step.device)
    shapes, ops = SHAPES[step.scope], MARKED if step.quick else MARKED + OTHERS
    step.measure("copy", lambda: ceiling(COPY_BYTES[step.scope]), timers.queued, "queued")
    for dtype in ["bf16", "fp32"] if step.scope == "full" else ["bf16"]:
        for op in ops:
            for shape in shapes:
                step.measure(f"{op} {shape} {dtype}", lambda: build(op, shape, dtype), timers.cold, "cold")
            if op in MARKED:
                step.measure(f"{op} warm {dtype}", lambda: build(op, shapes[0], dtype), timers.queued, "warm")
    if step.quick:
        return
    weights = [(48, 32), (32, 16)] if step.dry else WEIGHTS
    step.measure("multi_quantize_transpose", lambda: all_weights(weights), timers.cold, "cold")
    for op in [] if step.dry else COMPILED:
        step.measure(
            f"{op} compiled", lambda: build(op, shapes[0], "bf16", compiled=True), timers.cold, "cold"
        )
