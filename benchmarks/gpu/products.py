"""FP8 GEMMs at the sizes of language models against BF16 products and torch._scaled_mm."""

from __future__ import annotations

import peers
import rows
import torch
import transcast as tc
from clocks import clocks
from record import Step
from timing import Contender
from torch import Tensor

CUBES = [(8192, 8192, 8192), (4096, 4096, 4096)]
# (M, N, K): 4096 -> 11008 and back, and M = 15872 tokens at hidden 4096, intermediate 16384.
SHAPES = {
    "full": [*CUBES, (4096, 11008, 4096), (4096, 4096, 11008), (15872, 16384, 4096), (15872, 4096, 16384)],
    "quick": CUBES,
    "dry": [(32, 48, 64)],
}


def build(m: int, n: int, k: int) -> rows.Row:
    torch.manual_seed(0)
    x, w = torch.randn(m, k), torch.randn(n, k)
    a, b, g = tc.quantize(x, tc.E4M3), tc.quantize(w, tc.E4M3), tc.quantize(x, tc.E5M2)
    bias, aux = torch.randn(n, dtype=torch.bfloat16), torch.empty(m, n, dtype=torch.bfloat16)
    main_grad = torch.zeros(m, n)

    def ours(name: str, left: tuple[Tensor, Tensor], **options: object) -> Contender:
        return Contender(name, lambda: tc.gemm(left[0], b.q, left[1], b.scale_inv, **options))

    def scaled_mm(name: str, fast: bool) -> Contender:
        one = peers.scaled_mm(a.q, b.q, a.scale_inv, b.scale_inv, torch.bfloat16, fast)
        one.name = name
        return one

    x16, w16 = x.bfloat16(), w.bfloat16()
    ceiling = Contender("matmul bf16", lambda: x16 @ w16.t())
    others = [
        ceiling,
        ours("ours, fast_accum off", a),
        ours("ours, e5m2 x e4m3, fast_accum off", g),
        ours("ours, e5m2 x e4m3", g, fast_accum=True),
        scaled_mm("_scaled_mm", True),
        scaled_mm("_scaled_mm, fast_accum off", False),
        ours("ours, bias", a, bias=bias, fast_accum=True),
        ours("ours, bias, gelu_tanh", a, bias=bias, epilogue="gelu_tanh", fast_accum=True),
        ours("ours, gelu_tanh with aux", a, epilogue="gelu_tanh", aux=aux, fast_accum=True),
        ours("ours, accumulate into fp32", a, out=main_grad, accumulate=True),
    ]
    flops = 2 * m * n * k
    first = ours("ours", a, fast_accum=True)
    return rows.Row("gemm", (m, n, k), "bf16", first, others, ceiling, flops, flops, "GFLOP/s")


def plans(step: Step) -> None:
    """How cuBLASLt's plans were chosen; a product that took another way than one call says so here."""
    for plan in tc.gemm_plans():
        step.row(op="plan", plan=str(plan))


def run(step: Step) -> None:
    timer = clocks(step.device).queued
    for shape in SHAPES[step.scope]:
        step.measure(f"gemm {shape}", lambda: build(*shape), timer, "queued")
    step.attempt("plans", lambda: plans(step))
