"""FP8Linear forward and backward: in eager mode, replayed from a CUDA graph, and the host's share of it."""

from __future__ import annotations

from collections.abc import Callable

import peers
import rows
import torch
import transcast as tc
from capture import captured
from clocks import clocks
from composite import ScaledLinear
from record import Step
from timing import Contender
from torch import nn

CUBES = [(4096, 4096, 4096), (8192, 8192, 8192)]
SHAPES = {"full": [*CUBES, (8192, 14336, 4096), (2048, 2048, 2048)], "quick": CUBES, "dry": [(32, 48, 64)]}
COMPILED = (4096, 4096, 4096)  # one size, and last: the compilation takes long
HOST_SIZE = (256, 256, 256)  # the GPU is done before the host is
DRY_SIZE = (32, 48, 64)


class Case:
    """A layer in its forms, with one weight, one input and one gradient for all."""

    def __init__(self, m: int, n: int, k: int) -> None:
        torch.manual_seed(0)
        self.shape = (m, n, k)
        self.layer = nn.Linear(k, n, dtype=torch.bfloat16)
        self.x = torch.randn(m, k, dtype=torch.bfloat16, requires_grad=True)
        self.grad = torch.randn(m, n, dtype=torch.bfloat16)
        self.fp8 = tc.FP8Linear.from_linear(self.layer)

    def composite(self, x: torch.Tensor) -> torch.Tensor:
        return ScaledLinear.apply(x, self.layer.weight, self.layer.bias)

    def step(self, module: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.x.grad = self.layer.weight.grad = self.layer.bias.grad = None
        module(self.x).backward(self.grad)

    def contender(self, name: str, module: Callable) -> Contender:
        return Contender(name, lambda: self.step(module))

    def row(self, op: str, ours: Contender, others: list[Contender]) -> rows.Row:
        m, n, k = self.shape
        a, b = self.x.detach(), self.layer.weight.detach()
        ceiling = Contender("matmul bf16", lambda: a @ b.t())
        flops = 2 * m * n * k
        return rows.Row(op, self.shape, "bf16", ours, others, ceiling, 3 * flops, flops, "GFLOP/s")


def eager(shape: tuple[int, int, int], compile_it: bool = False) -> rows.Row:
    torch.compiler.reset()
    case = Case(*shape)
    others = [case.contender("nn.Linear", case.layer), case.contender("_scaled_mm composite", case.composite)]
    others.append(peers.torchao_linear(case.layer, case.step, compile_it=False))
    if compile_it:
        others.append(peers.torchao_linear(case.layer, case.step, compile_it=True))
    return case.row("linear", case.contender("ours", case.fp8), others)


def replayed(device: str, shape: tuple[int, int, int]) -> rows.Row:
    case = Case(*shape)

    def contender(name: str, module: Callable) -> Contender:
        call = case.contender(name, module).call
        return Contender(name, call if device == "cpu" else captured(call))

    others = [contender("nn.Linear", case.layer)]
    return case.row("linear_graph", contender("ours", case.fp8), others)


def host(op: str, shape: tuple[int, int, int]) -> rows.Row:
    case = Case(*shape)

    def forward(name: str, module: nn.Module) -> Contender:
        return Contender(name, lambda: module(case.x))

    kind = forward if op == "linear_forward_host" else case.contender
    return case.row(op, kind("ours", case.fp8), [kind("nn.Linear", case.layer)])


def ops_on_the_host(step: Step) -> None:
    """The host's time for single ops, where the GPU has next to nothing to do."""
    x = torch.randn(256, 256, dtype=torch.bfloat16, device=step.device)
    q, scale_inv, _, _ = tc.quantize_transpose(x, tc.E4M3)
    calls = {
        "quantize": lambda: tc.quantize(x, tc.E4M3),
        "quantize_transpose": lambda: tc.quantize_transpose(x, tc.E4M3),
        "gemm": lambda: tc.gemm(q, q, scale_inv, scale_inv),
        "matmul": lambda: x @ x.t(),
    }
    timer = clocks(step.device).enqueuing
    for name, call in calls.items():
        timer(call, 1)
        us = 1e6 * timer(call, 5 if step.dry else 200)
        step.row(op=f"{name}_host", contender="ours", shape=[256, 256], us=us, how="enqueuing")


def run(step: Step) -> None:
    timers = clocks(step.device)
    small = DRY_SIZE if step.dry else HOST_SIZE

    def on_host(op: str) -> None:
        step.measure(op, lambda: host(op, small), timers.enqueuing, "enqueuing")

    on_host("linear_host")
    for shape in SHAPES[step.scope]:
        step.measure(f"linear {shape}", lambda: eager(shape), timers.eager, "eager")
    if step.quick:
        return
    for shape in (small, SHAPES[step.scope][0]):
        step.measure(f"graph {shape}", lambda: replayed(step.device, shape), timers.eager, "graph")
    on_host("linear_forward_host")
    step.attempt("ops on the host", lambda: ops_on_the_host(step))
    if not step.dry:
        step.measure("linear compiled", lambda: eager(COMPILED, compile_it=True), timers.eager, "eager")
