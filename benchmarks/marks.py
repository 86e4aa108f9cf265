"""The marks that transcast is measured against: 2 threads, CPU, time of the peer over ours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mark:
    """Row ``op shape dtype`` has a ratio of at least ``ratio`` against ``peer``; a stretch mark is a wish."""

    op: str
    shape: tuple[int, ...]
    dtype: str
    peer: str
    ratio: float
    stretch: bool = False

    @property
    def label(self) -> str:
        return row_label(self.op, self.shape, self.dtype)


def row_label(op: str, shape: tuple[int, ...], dtype: str) -> str:
    return f"{op} {'x'.join(map(str, shape))} {dtype}"


SQUARE = (4096, 4096)
CUBE_1024, CUBE_2048, CUBE_64 = (1024,) * 3, (2048,) * 3, (64,) * 3
STEP = (1, 4096, 4096)
FASTER = 1.0
BUILD_S, IMPORT_S = 60.0, 0.1  # a clean CPU build on 2 cores; an import, over that of torch

# A mark of "at most t times the peer's time" is a ratio of at least 1 / t.
MARKS = [
    Mark("amax", SQUARE, "bf16", "eager", 4),
    Mark("amax", SQUARE, "bf16", "compile", 1.4),
    Mark("quantize", SQUARE, "bf16", "eager", 12),
    Mark("quantize", SQUARE, "bf16", "compile", 3.5),
    Mark("quantize", SQUARE, "bf16", "copy", 1 / 1.5, stretch=True),
    Mark("quantize_transpose", SQUARE, "bf16", "eager", 10),
    Mark("quantize_transpose", SQUARE, "bf16", "compile", 5),
    Mark("dequantize", SQUARE, "fp32", ".to", 10),
    Mark("gemm", CUBE_1024, "fp32", "matmul fp32", 1 / 1.08),
    Mark("gemm", CUBE_1024, "fp32", "_scaled_mm", 1.1),
    Mark("gemm", CUBE_2048, "fp32", "matmul fp32", 1 / 1.08),
    Mark("gemm", CUBE_2048, "fp32", "_scaled_mm", 1.1),
    Mark("linear_1024", CUBE_1024, "fp32", "nn.Linear", 1 / 1.15),
    Mark("linear_1024", CUBE_1024, "fp32", "torchao", 1.25),
    Mark("linear_1024", CUBE_1024, "bf16", "nn.Linear", FASTER),
    Mark("linear_2048", CUBE_2048, "fp32", "nn.Linear", 1 / 1.15),
    Mark("linear_2048", CUBE_2048, "fp32", "torchao", 1.25),
    Mark("linear_2048", CUBE_2048, "bf16", "nn.Linear", FASTER),
    Mark("linear_64", CUBE_64, "fp32", "nn.Linear", 1 / 1.8),
    Mark("linear_64", CUBE_64, "bf16", "nn.Linear", 1 / 1.8),
    Mark("decode", STEP, "fp32", "nn.Linear fp32", 2),
    Mark("decode", STEP, "bf16", "nn.Linear bf16", 1.5),
    Mark("decode", STEP, "bf16", "nn.Linear bf16", 2, stretch=True),
]
