"""Products that cuBLASLt accepts, run on real data and held against FP64.

What its documentation leaves open shows here: layouts of scales, the order of an epilogue's steps, the bits
of the accumulator.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from lt_query import BYTES, Pointers, Query
from torch import Tensor

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
DTYPES |= {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
# Half a unit in the last place: relative, and of the smallest subnormal.
ROUNDING = {"f32": (2.0**-24, 2.0**-150), "f16": (2.0**-11, 2.0**-25), "bf16": (2.0**-8, 2.0**-134)}
ROUNDING |= {"e4m3": (2.0**-4, 2.0**-10), "e5m2": (2.0**-3, 2.0**-17)}
ACCUMULATOR = 2.0**-13  # tensor cores may keep no more bits of a partial sum
INSTRUCTION_K = 32  # products that one instruction adds
PARTIAL_SUMS = 4  # standard deviations that partial sums of random terms stay within, where it matters
TANH = 2.0**-10  # the hardware's tanh is off by up to 2^-11
D_SCALE = 1.5


def scales(mode: str, rows: int, k: int) -> tuple[Tensor, Tensor]:
    """Scales as the library reads them, and one for each element [rows, k]."""
    blocks = -(-k // 128)
    if mode == "scalar":
        one = torch.rand(1) + 0.1
        return one, one.expand(rows, k)
    if mode == "outer_vec":
        vector = torch.rand(rows) + 0.1
        return vector, vector[:, None].expand(rows, k)
    if mode == "vec128":  # the rows' scales of one block of k lie side by side
        stored = torch.rand(blocks, rows) + 0.1
        return stored, stored.t().repeat_interleave(128, dim=1)[:, :k]
    stored = torch.rand(-(-rows // 128), -(-blocks // 4) * 4) + 0.1  # 128x128; k first, padded to 4
    spread = stored.repeat_interleave(128, dim=0)[:rows].repeat_interleave(128, dim=1)
    return stored, spread[:, :k]


class Run:
    """Operands of one product, its exact result, and how far from it a computed one may be.

    In row-major terms: d [n, m] = epilogue(b [n, k] . a [m, k]^T).
    """

    def __init__(self, query: Query, beta: float) -> None:
        torch.manual_seed(0)
        q = self.query = query
        self.beta = beta
        self.a, self.b = (torch.randn(rows, q.k).to(DTYPES[t]) for rows, t in ((q.m, q.a), (q.n, q.b)))
        self.a_scale, a_each = scales(q.sa, q.m, q.k)
        self.b_scale, b_each = scales(q.sb, q.n, q.k)
        self.bias = torch.randn(q.m).to(DTYPES[q.bias or "bf16"])
        self.aux = torch.randn(q.n, q.aux_stride).to(DTYPES[q.aux or "bf16"])
        self.aux_given = self.aux.clone()
        self.c = torch.randn(q.n, q.m).to(DTYPES[q.c_type])
        self.d = self.c.clone() if beta else torch.full((q.n, q.m), float("nan")).to(DTYPES[q.d])
        self.d_scale, self.amax = torch.tensor(D_SCALE), torch.zeros(())
        self.operands = self.a.double() * a_each, self.b.double() * b_each

    @property
    def pointers(self) -> Pointers:
        tensors = self.a_scale, self.b_scale, self.bias, self.aux, self.d_scale, self.amax
        return Pointers(*(t.data_ptr() for t in tensors))

    def epilogue(self, acc: Tensor) -> tuple[Tensor, Tensor]:
        """The result before D's scale, and the argument of the activation, both in ``acc``'s dtype."""
        pre = acc + self.beta * self.c.to(acc.dtype)
        if "bias" in self.query.epi:
            pre = pre + self.bias.to(acc.dtype)
        if self.query.epi == "dgelu":
            at = self.aux_given[:, : self.query.m].to(acc.dtype).requires_grad_()
            (slope,) = torch.autograd.grad(F.gelu(at, approximate="tanh").sum(), at)
            return pre * slope, pre
        if "relu" in self.query.epi:
            return pre.relu(), pre
        return (F.gelu(pre, approximate="tanh") if "gelu" in self.query.epi else pre), pre

    def compute(self) -> None:
        """Stands in for the library where there is no GPU: FP32, and D rounded once."""
        a, b = (t.float() for t in self.operands)
        y, pre = self.epilogue(b @ a.t())
        if BYTES[self.query.d] == 1:
            self.amax.copy_(y.abs().max())
            largest = torch.finfo(DTYPES[self.query.d]).max
            y = (y * self.d_scale).clamp(-largest, largest)
        self.d.copy_(y.to(DTYPES[self.query.d]))
        if self.query.epi.startswith("gelu_aux"):
            self.aux[:, : self.query.m] = pre.to(self.aux.dtype)

    def judge(self) -> dict:
        """Errors over what is allowed, below 1 where all is well, and the error over the result's size."""
        q, (a, b) = self.query, self.operands
        acc = b @ a.t()
        size = (b.square() @ a.square().t()).sqrt()
        y, pre = self.epilogue(acc)
        error = ACCUMULATOR * -(-q.k // INSTRUCTION_K) * PARTIAL_SUMS * size
        if q.epi == "gelu_aux_bias":  # the bias meets the product rounded to D's type
            error = error + 2 * ROUNDING[q.d][0] * acc.abs()
        allowed = 1.13 * error + (TANH * 4 * pre.abs() if "gelu" in q.epi else 0)
        fp8 = BYTES[q.d] == 1
        scale, largest = (D_SCALE, torch.finfo(DTYPES[q.d]).max) if fp8 else (1.0, torch.inf)
        verdict = {"d": _worst(self.d.double(), (scale * y).clamp(-largest, largest), scale * allowed, q.d)}
        if fp8:
            verdict["amax"] = _worst(self.amax.double(), y.abs().max(), allowed.max(), "f32")
        if q.epi.startswith("gelu_aux"):
            verdict["aux"] = _worst(self.aux[:, : q.m].double(), pre, error, q.aux or "bf16")
        if q.d == "f32":
            verdict["error_over_size"] = float(((self.d - y).abs() / size).max())
        return verdict


def _worst(got: Tensor, exact: Tensor, allowed: Tensor, type_: str) -> float:
    relative, absolute = ROUNDING[type_]
    ratio = (got - exact).abs() / (allowed + relative * (exact.abs() + allowed) + absolute)
    return float(ratio.nan_to_num(torch.inf).max())


def shows_nan(query: Query, device: str, multiply: Callable[[Run], str]) -> dict:
    """One row: whether a NaN in an operand reaches its row of D, and the amax of D."""
    with torch.device(device):
        run = Run(query, 0.0)
        for b in (run.b, run.operands[1]):
            b[0, 0] = torch.nan
    status = multiply(run)
    if status != "SUCCESS":
        return {"status": status, "d": None}
    row = {
        "status": status,
        "d": bool(run.d.float()[0].isnan().all() and not run.d.float()[1:].isnan().any()),
    }
    return row | ({"amax": bool(run.amax.isnan())} if query.amax else {})


def verdict(query: Query, beta: float, device: str, multiply: Callable[[Run], str]) -> dict:
    """One row: the status of the product, and how its results compare."""
    with torch.device(device):
        run = Run(query, beta)
    status = multiply(run)
    if status != "SUCCESS":
        return {"status": status, "ok": None}
    found = run.judge()
    return {
        "status": status,
        "ok": all(found[name] < 1 for name in ("d", "amax", "aux") if name in found),
        **found,
    }
