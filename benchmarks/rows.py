"""Builds the rows of tests/cases.py: operands, our call, its peers, and the work that bounds the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cases
import peers
import torch
import transcast as tc
from marks import row_label
from timing import Contender
from torch import Tensor, nn


@dataclass
class Row:
    """``work`` and ``ceiling_work``, that of the ceiling, are bytes (read and written once) or FLOPs."""

    op: str
    shape: tuple[int, ...]
    dtype: str
    ours: Contender
    peers: list[Contender]
    ceiling: Contender  # measured with the row: copy_ of the input, or the FP32 matmul of the same M, N, K
    work: float
    ceiling_work: float
    unit: str = "GB/s"

    @property
    def label(self) -> str:
        return row_label(self.op, self.shape, self.dtype)

    @property
    def contenders(self) -> list[Contender]:
        apart = [] if self.ceiling in self.peers else [self.ceiling]
        return [self.ours, *apart, *self.peers]

    @property
    def floor_us(self) -> float:
        """The time that the row's work takes at the rate of the ceiling."""
        return self.ceiling.us * self.work / self.ceiling_work

    @property
    def rate(self) -> float:
        return self.work / self.ours.us / 1e3


def size(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def copy_of(x: Tensor) -> Contender:
    target = torch.empty_like(x)
    return Contender("copy", lambda: target.copy_(x))


def memory_row(
    op: str, shape: tuple[int, ...], dtype: str, x: Tensor, call: Callable, others: list[Contender]
) -> Row:
    """A row bound by memory: operands of ``call`` other than ``x`` are scalars, not worth counting."""
    results = call()
    outputs = [results] if isinstance(results, Tensor) else list(results)
    copy = copy_of(x)
    return Row(
        op, shape, dtype, Contender("ours", call), [copy, *others], copy, size(x, *outputs), 2 * size(x)
    )


def amax(op: str, shape: tuple[int, ...], dtype: str) -> Row:
    x = torch.randn(shape).to(cases.DTYPES[dtype])
    others = [peers.eager(peers.amax, x), peers.compiled(peers.amax, x)]
    return memory_row(op, shape, dtype, x, lambda: tc.amax(x), others)


def into_fp8(op: str, shape: tuple[int, ...], dtype: str) -> Row:
    """cast and quantize, with and without the transpose."""
    x = torch.randn(shape).to(cases.DTYPES[dtype])
    given = () if op.startswith("quantize") else (peers.scale_of(x.abs().max(), tc.E4M3),)
    composite, ours = getattr(peers, op), getattr(tc, op)
    others = [peers.eager(composite, x, *given, tc.E4M3), peers.compiled(composite, x, *given, tc.E4M3)]
    if x.dtype != torch.float32:
        others.insert(
            1, peers.eager(composite, x, *given, tc.E4M3, peers.saturated_16_bit, name="eager 16-bit")
        )
    if op == "quantize":
        others.append(peers.torchao_quantize(x, tc.E4M3))
    return memory_row(op, shape, dtype, x, lambda: ours(x, *given, tc.E4M3), others)


def swiglu(op: str, shape: tuple[int, ...], dtype: str) -> Row:
    """swiglu into FP8, and its gradient; gate and up are tensors of their own."""
    gradient = op.startswith("dact")
    fmt = tc.E5M2 if gradient else tc.E4M3
    operands = [torch.randn(shape).to(cases.DTYPES[dtype]) for _ in range(3 if gradient else 2)]
    *others, up = operands
    composite, ours = getattr(peers, op), getattr(tc, op)
    contenders = [peers.eager(composite, *operands, fmt), peers.compiled(composite, *operands, fmt)]
    row = memory_row(op, shape, dtype, up, lambda: ours(*others, fmt, act="swiglu", up=up), contenders)
    row.work += size(*others)
    return row


def dequantize(op: str, shape: tuple[int, ...], dtype: str) -> Row:
    q, scale_inv = tc.quantize(torch.randn(shape), tc.E4M3)
    to = cases.DTYPES[dtype]
    others = [
        peers.eager(peers.dequantize, q, scale_inv, to),
        peers.eager(q.to, to, name=".to"),
        peers.compiled(peers.dequantize, q, scale_inv, to),
    ]
    return memory_row(op, shape, dtype, q, lambda: tc.dequantize(q, scale_inv, to), others)


def matmul(m: int, n: int, k: int, a: Tensor | None = None, b: Tensor | None = None) -> Contender:
    a = torch.randn(m, k) if a is None else a
    b = torch.randn(n, k) if b is None else b
    return Contender("matmul fp32", lambda: a @ b.t())


def gemm(op: str, shape: tuple[int, ...], dtype: str) -> Row:
    m, n, k = shape
    a, b = (tc.quantize(torch.randn(rows, k), tc.E4M3) for rows in (m, n))
    out = cases.DTYPES[dtype]

    def call() -> Tensor:
        return tc.gemm(a.q, b.q, a.scale_inv, b.scale_inv, out_dtype=out)

    decoded = matmul(m, n, k, a.q.float() * a.scale_inv, b.q.float() * b.scale_inv)
    others = [decoded, peers.scaled_mm(a.q, b.q, a.scale_inv, b.scale_inv, out)]
    flops = 2 * m * n * k
    return Row(op, shape, dtype, Contender("ours", call), others, decoded, flops, flops, "GFLOP/s")


def linear(op: str, shape: tuple[int, ...], dtype: str) -> Row:
    """Forward and backward, gradients of input, weight and bias. The layers share one weight and one bias."""
    m, n, k = shape
    layer = nn.Linear(k, n, dtype=cases.DTYPES[dtype])
    x = torch.randn(m, k, dtype=layer.weight.dtype, requires_grad=True)
    grad = torch.randn(m, n, dtype=layer.weight.dtype)

    def step(module: nn.Module) -> None:
        x.grad = layer.weight.grad = layer.bias.grad = None
        module(x).backward(grad)

    ours = tc.FP8Linear.from_linear(layer)
    others = [
        Contender("nn.Linear", lambda: step(layer)),
        peers.torchao_linear(layer, step, compile_it=False),
    ]
    if m == 1024:  # one size: the compilation takes long
        others.append(peers.torchao_linear(layer, step, compile_it=True))
    flops = 2 * m * n * k
    ceiling = matmul(m, n, k)
    return Row(
        op, shape, dtype, Contender("ours", lambda: step(ours)), others, ceiling, 3 * flops, flops, "GFLOP/s"
    )


def decode(op: str, shape: tuple[int, ...], dtype: str) -> Row:
    """One step of inference with weights that exist in FP8 only; bound by reading them."""
    m, n, k = shape
    x = torch.randn(m, k, dtype=cases.DTYPES[dtype])
    quantized = tc.quantize_weights_(nn.Sequential(tc.FP8Linear.from_linear(nn.Linear(k, n, dtype=x.dtype))))[
        0
    ]

    def step(name: str, module: nn.Module, x: Tensor) -> Contender:
        return Contender(name, lambda: module(x), torch.inference_mode)

    dtypes = {name: cases.DTYPES[name] for name in ("fp32", "bf16")}
    others = [step(f"nn.Linear {name}", nn.Linear(k, n, dtype=to), x.to(to)) for name, to in dtypes.items()]
    weights = torch.empty(n, k, dtype=torch.uint8)
    work = size(weights, x) + m * n * x.element_size()
    return Row(
        op, shape, dtype, step("ours", quantized, x), others, copy_of(weights), work, 2 * size(weights)
    )


BUILDERS: dict[str, Callable[[str, tuple[int, ...], str], Row]] = {
    "amax": amax,
    **dict.fromkeys(("cast", "cast_transpose", "quantize", "quantize_transpose"), into_fp8),
    **dict.fromkeys(("act_quantize_transpose", "dact_quantize_transpose_dbias"), swiglu),
    "dequantize": dequantize,
    "gemm": gemm,
    **dict.fromkeys(("linear_64", "linear_1024", "linear_2048"), linear),
    "decode": decode,
}


def build(op: str, shape: tuple[int, ...], dtype: str) -> Row:
    """The row with its operands, the same in every run. torch.compile starts afresh: its cache is limited."""
    torch.manual_seed(0)
    torch.compiler.reset()
    return BUILDERS[op](op, shape, dtype)
