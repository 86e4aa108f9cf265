"""Every op once against the reference: what has to be right before a figure means anything.

The small pass that compute-sanitizer watches is the same, at ragged shapes only. In a dry run the ops run on
the CPU and on the emulator.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import act_args
import capture
import cases
import layer as layer_checks
import record
import smoke_products
import torch
import transcast as tc
from conftest import Backend, assert_matches_reference, emulated
from record import ROOT, Step
from torch import Tensor

RAGGED, EVEN = (129, 131), (256, 512)
E4M3, E5M2 = tc.E4M3, tc.E5M2
Check = tuple[str, Callable[[], object]]


def backend_of(name: str) -> Backend:
    if name == "emu":
        emulated()
        return Backend(name, torch.ops.transcast_emu, torch.device("cpu"))
    return Backend(name, torch.ops.transcast, torch.device(name))


def casts(backend: Backend, shape: tuple[int, int], dtype: torch.dtype) -> Iterator[Check]:
    x, scale = cases.normal(shape, dtype), cases.scalar(1.7)
    arguments = {"amax": (x,), "transpose": (cases.fp8(shape, E4M3),)}
    arguments["dequantize"] = (cases.fp8(shape, E5M2), cases.scalar(0.37), torch.bfloat16)
    arguments |= {op: (x, scale, E4M3) for op in cases.CAST_OPS}
    arguments |= {op: (x, E5M2, False, 0) for op in cases.QUANTIZE_OPS}
    arguments["multi_quantize_transpose"] = ([x, x[:17].float(), x[:, :5]], E4M3, True, 1)
    for op, args in arguments.items():
        yield op, lambda op=op, args=args: assert_matches_reference(backend, op, *args)


def activations(backend: Backend, shape: tuple[int, int], dtype: torch.dtype) -> Iterator[Check]:
    def make(shape: tuple[int, ...], seed: int) -> Tensor:
        return act_args.activations(shape, dtype, seed)

    for form in act_args.FORMS:
        x, act, up = act_args.operands(form, shape, make)
        g = act_args.gradient_for(x, act, up)
        for op in cases.ACT_OPS + cases.DACT_OPS:
            if op in cases.ACT_OPS:
                args = act_args.act_args(op, x, act, up, E4M3)
            else:
                args = act_args.dact_args(op, g, x, act, up, E5M2)
            yield f"{op} {form}", lambda op=op, args=args: assert_matches_reference(backend, op, *args)


def layer(backend: Backend, shape: tuple[int, int, int]) -> Iterator[Check]:
    m, n, k = shape

    def step() -> None:
        torch.manual_seed(0)
        fp8 = tc.FP8Linear(k, n, dtype=torch.bfloat16).to(backend.device)
        x, grad = (torch.randn(m, width).bfloat16().to(backend.device) for width in (k, n))
        results = layer_checks.run(fp8, x, grad)
        layer_checks.assert_near_reference(results, x, fp8.weight, fp8.bias, grad)

    yield "FP8Linear", step


def checks(backend: Backend, small: bool) -> Iterator[Check]:
    for shape in (RAGGED,) if small else (RAGGED, EVEN):
        for name, dtype in cases.DTYPES.items():
            if dtype == torch.float16 and small:
                continue
            for what, check in (*casts(backend, shape, dtype), *activations(backend, shape, dtype)):
                yield f"{what} {shape} {name}", check
    yield from smoke_products.checks(backend, small)
    if backend.name == "emu":  # whose ops the layer does not call
        return
    for shape in smoke_products.SHAPES[:1] if small else smoke_products.SHAPES:
        for what, check in layer(backend, shape):
            yield f"{what} {shape}", check


def first_product(device: str) -> None:
    """In a process of its own: here, handles, plans and workspaces exist before any capture."""
    command = [sys.executable, str(ROOT / "benchmarks/gpu/capture.py"), "--device", device]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    assert done.returncode == 0, done.stdout[-500:]


def graphs(step: Step) -> None:
    """On the CPU the same without a graph."""
    device, how = torch.device(step.device), capture.captured if step.device == "cuda" else lambda call: call

    def attempt(what: str, check: Callable[[], object]) -> None:
        before = step.failures
        step.attempt(what, check)
        if step.failures == before:
            step.row(op=what, ok=True)

    for shape in smoke_products.SHAPES:
        attempt(f"graph replay {shape}", lambda: capture.check_replay(device, shape, how))
    attempt("first product in a graph", lambda: first_product(step.device))


def judge_plans(step: Step, plans: list[dict]) -> None:
    """Each product that the support table calls native was: results would be right without, and slow."""
    if not plans:
        step.failures += 1
        step.row(op="plan", ok=False, error="no product reached cuBLASLt")
    for plan in plans:
        native = plan["chosen"] >= 0
        step.failures += not native
        error = None if native else f"cuBLASLt has no algorithm: {plan['description']}"
        facts = {name: plan[name] for name in ("candidates", "chosen", "workspace_bytes", "calls")}
        step.row(op="plan", ok=native, plan=plan["description"], **facts, error=error)


def run(step: Step, backend: Backend, small: bool) -> None:
    passed, failed = 0, step.failures
    for what, check in checks(backend, small):
        before = step.failures
        step.attempt(f"{backend.name}: {what}", check)
        passed += step.failures == before
    failed = step.failures - failed
    step.row(op=f"{backend.name}: all", ok=failed == 0, passed=passed, wrong=failed)


def main(argv: list[str] | None = None) -> None:
    options = record.parser(__doc__)
    options.add_argument(
        "--backends", help="cpu, emu or cuda, several with commas; default: that of --device"
    )
    options.add_argument("--small", action="store_true", help="one small pass")
    chosen = options.parse_args(argv)
    step = record.step_of(chosen)
    names = (chosen.backends or ("cpu,emu" if step.dry else step.device)).split(",")
    for name in names:
        step.attempt(name, lambda: run(step, backend_of(name), chosen.small or step.dry))
    if not chosen.small:  # sanitizers slow down what a graph and plans have to show, too
        step.attempt("graphs", lambda: graphs(step))
        if step.device == "cuda":
            step.attempt("plans", lambda: judge_plans(step, tc.gemm_plans()))
    sys.exit(1 if step.failures else 0)


if __name__ == "__main__":
    main()
