"""Every op once against the reference: what has to be right before a figure means anything.

The small pass that compute-sanitizer watches is the same, at ragged shapes only. In a dry run the ops run on
the CPU and on the emulator.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import act_args
import cases
import gemm_checks
import layer as layer_checks
import record
import torch
import transcast as tc
from conftest import Backend, assert_matches_reference, emulated
from record import Step
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


def products(backend: Backend, shape: tuple[int, int, int]) -> Iterator[Check]:
    args = gemm_checks.operands(shape)
    m, n, _ = shape
    bias, aux = cases.normal((n,), torch.bfloat16) / 64, cases.normal((m, n), torch.bfloat16) / 64
    empty = torch.zeros((m, n), dtype=torch.bfloat16)

    def gemm(*rest: object, **options: object) -> Callable[[], object]:
        return lambda: gemm_checks.check_gemm(backend, args, *rest, **options)

    for pair in gemm_checks.PAIRS:
        operands = gemm_checks.operands(shape, pair)
        yield f"gemm {pair}", lambda operands=operands: gemm_checks.check_gemm(backend, operands)
    for out_dtype in cases.DTYPES.values():
        yield f"gemm -> {out_dtype}", gemm(out_dtype=out_dtype)
    yield "gemm bias", gemm(bias, out_dtype=torch.bfloat16)
    yield "gemm bias relu", gemm(bias, "relu")
    yield "gemm bias gelu_tanh", gemm(bias, "gelu_tanh", out_dtype=torch.bfloat16)
    yield "gemm dgelu", gemm(None, "dgelu", aux, out_dtype=torch.bfloat16)

    def out(*rest: object) -> Callable[[], object]:
        return lambda: gemm_checks.check_gemm_out(backend, args, *rest)

    for dtype in (torch.float32, torch.bfloat16):
        yield f"gemm_out accumulate {dtype}", out(cases.normal((m, n), dtype), None, "none", None, True)
    yield "gemm_out aux", out(empty.clone(), bias, "gelu_tanh", None, False, empty.clone())
    for fmt in (E4M3, E5M2):
        yield (
            f"gemm_fp8 {fmt}",
            lambda fmt=fmt: gemm_checks.check_gemm_fp8(backend, args, cases.scalar(0.01), bias, "relu", fmt),
        )


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
    for shape in ((33, 48, 47),) if small else ((33, 48, 47), (128, 256, 512)):
        parts = [] if (backend.name, "test_gemm.py") in cases.UNSUPPORTED else [*products(backend, shape)]
        parts += layer(backend, shape) if backend.name != "emu" else []  # whose ops the layer does not call
        for what, check in parts:
            yield f"{what} {shape}", check


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
    sys.exit(1 if step.failures else 0)


if __name__ == "__main__":
    main()
