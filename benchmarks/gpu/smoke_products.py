"""GEMMs of every kind against the reference: formats, outputs, epilogues, scales, alignment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import cases
import gemm_checks
import torch
import transcast as tc
from conftest import Backend
from torch import Tensor

Check = tuple[str, Callable[[], object]]
E4M3, E5M2 = tc.E4M3, tc.E5M2
ROWS, WIDE, SQUARE = "row", "1x128", "128x128"
SHAPES = [(33, 48, 47), (128, 256, 512)]
SCALED_SHAPES = [(33, 48, 300), (128, 256, 512)]  # with several blocks in K: one would be a row's


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
        yield f"gemm FP32 bias -> {out_dtype}", gemm(bias.float(), out_dtype=out_dtype)
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
            lambda fmt=fmt: gemm_checks.check_gemm_fp8(backend, args, cases.scalar(0.01), bias, "none", fmt),
        )
    shifted = replace(backend, ops=Unaligned(backend.ops))
    yield "gemm of unaligned operands", lambda: gemm_checks.check_gemm(shifted, args)


def unaligned(x: Tensor) -> Tensor:
    """A copy that no allocation begins with, whatever the device."""
    codes = x.view(torch.uint8).flatten()
    return torch.cat((codes[:1], codes))[1:].view(x.shape).view(x.dtype)


class Unaligned:
    """Ops whose operands are one byte behind what a vector load takes."""

    def __init__(self, ops: object) -> None:
        self.ops = ops

    def __getattr__(self, name: str) -> Callable:
        return lambda a, b, *rest: getattr(self.ops, name)(unaligned(a), unaligned(b), *rest)


def takes_blocks(backend: Backend) -> bool:
    """Other GPUs refuse scales of blocks; the emulated device is one that takes them."""
    return backend.name != "cuda" or torch.cuda.get_device_capability() == (9, 0)


def scale_pairs(backend: Backend) -> list[tuple[str, str]]:
    blocks = [(WIDE, WIDE), (WIDE, SQUARE), (SQUARE, WIDE)]
    return [(ROWS, ROWS), *(blocks if takes_blocks(backend) else [])]


def scales(kind: str, rows: int, k: int, seed: int) -> Tensor:
    """Within a factor of 16 of each other, so that one in the wrong place is seen."""
    blocks = -(-k // 128)
    shape = {ROWS: (rows, 1), WIDE: (rows, blocks), SQUARE: (-(-rows // 128), blocks)}[kind]
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator) + 2.0**-4) * 2.0**-6


def scaled_products(backend: Backend, shape: tuple[int, int, int]) -> Iterator[Check]:
    """Products with a scale for each row or block: in one call, and with an epilogue of ours behind it."""
    m, n, k = shape
    a, b, *_ = gemm_checks.operands(shape)
    bias = cases.normal((n,), torch.bfloat16) / 64
    for kinds in scale_pairs(backend):
        args = [a, b, scales(kinds[0], m, k, 1), scales(kinds[1], n, k, 2)]
        for bias_or_none, epilogue in ((None, "none"), (bias, "none"), (bias, "relu")):
            what = f"gemm {' by '.join(kinds)}{' bias' if bias_or_none is not None else ''} {epilogue}"
            yield (
                what,
                lambda args=args, rest=(bias_or_none, epilogue): gemm_checks.check_gemm(backend, args, *rest),
            )


def checks(backend: Backend, small: bool) -> Iterator[Check]:
    for one, shapes in ((products, SHAPES), (scaled_products, SCALED_SHAPES)):
        for shape in shapes[:1] if small else shapes:
            for what, check in one(backend, shape):
                yield f"{what} {shape}", check
