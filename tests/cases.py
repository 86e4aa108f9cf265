"""The table that tests and benchmarks read: shapes, dtypes, formats, scales, values, error bounds, rows.

Each fact is stated once: here, in values.py or in bounds.py, whose names are imported from here. A row that a
backend cannot run is listed in UNSUPPORTED with its reason, a bug report without a test in DEFERRED.
"""

from __future__ import annotations

import math
from itertools import product

import torch

from bounds import ACT_BOUNDS, gemm_bound, sum_bound
from values import (
    E4M3,
    E5M2,
    SPECIAL_VALUES,
    all_codes,
    all_patterns,
    fp8,
    fp8_integers,
    fp32_boundaries,
    normal,
    scalar,
)

__all__ = [
    "ACTS",
    "ACT_BOUNDS",
    "ACT_OPS",
    "BENCHMARKS",
    "CASE_IDS",
    "CAST_OPS",
    "DACT_OPS",
    "DEFERRED",
    "DEFERRED_PARTS",
    "DTYPES",
    "E4M3",
    "E5M2",
    "EMPTY_GEMM_SHAPES",
    "EMPTY_SHAPES",
    "FORMATS",
    "FP8_MAX",
    "GEMM_SHAPES",
    "LARGE_GEMM_SHAPES",
    "LARGE_SHAPES",
    "OPERATOR_SHAPES",
    "OUTPUTS",
    "QUANTIZE_OPS",
    "SCALES",
    "SHAPES",
    "SPECIAL_VALUES",
    "UNSUPPORTED",
    "all_codes",
    "all_patterns",
    "fp32_boundaries",
    "fp8",
    "fp8_integers",
    "gemm_bound",
    "normal",
    "scalar",
    "shape_id",
    "sum_bound",
]

FORMATS = {"e4m3": E4M3, "e5m2": E5M2}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FP8_MAX = {E4M3: 448.0, E5M2: 57344.0}

# Every op, and what it returns, in order.
OUTPUTS = {
    "amax": ("amax",),
    "cast": ("q", "scale_inv", "amax"),
    "cast_transpose": ("q", "scale_inv", "q_t", "amax"),
    "cast_transpose_dbias": ("q", "scale_inv", "q_t", "dbias", "amax"),
    "quantize": ("q", "scale_inv"),
    "quantize_transpose": ("q", "scale_inv", "q_t", "scale_inv_t"),
    "quantize_transpose_dbias": ("q", "scale_inv", "q_t", "scale_inv_t", "dbias"),
    "multi_quantize_transpose": ("q", "scale_inv", "q_t", "scale_inv_t"),
    "act_cast": ("q", "scale_inv", "amax"),
    "act_cast_transpose": ("q", "scale_inv", "q_t", "amax"),
    "act_quantize": ("q", "scale_inv"),
    "act_quantize_transpose": ("q", "scale_inv", "q_t", "scale_inv_t"),
    "dact_cast_transpose_dbias": ("q", "scale_inv", "q_t", "dbias", "amax"),
    "dact_quantize_transpose_dbias": ("q", "scale_inv", "q_t", "scale_inv_t", "dbias"),
    "dequantize": ("y",),
    "transpose": ("q_t",),
    "gemm": ("y",),
    "gemm_out": (),
    "gemm_fp8": ("q", "scale_inv", "amax"),
}
CAST_OPS = ["cast", "cast_transpose", "cast_transpose_dbias"]
QUANTIZE_OPS = ["quantize", "quantize_transpose", "quantize_transpose_dbias"]
ACTS = ["gelu_tanh", "silu", "swiglu"]
ACT_OPS = ["act_cast", "act_cast_transpose", "act_quantize", "act_quantize_transpose"]
DACT_OPS = ["dact_cast_transpose_dbias", "dact_quantize_transpose_dbias"]

# --- shapes ---------------------------------------------------------------------------------------

EMPTY_SHAPES = [(0,), (0, 16), (16, 0), (0, 0), (3, 0, 5), (2, 3, 0)]
# Operator shapes of transformers in small, one row, one column, ragged against 8, 16, 32, 128 on each side.
SHAPES = [
    (1,), (7,), (3221,), (1, 1), (8, 8), (1, 3221), (2333, 1), (217, 256), (120, 2080), (17, 33), (16, 16),
    (15, 712), (50, 24), (129, 130), (64, 15), (31, 65), (2, 3, 7, 9), (5, 4, 3, 160), *EMPTY_SHAPES,
]  # fmt: skip
# More elements than a backend may keep in caches, ragged and not.
LARGE_SHAPES = [(2049, 2080), (2048, 2112)]
# Operator shapes of transformers in full.
OPERATOR_SHAPES = [(2048, 12288), (768, 1024), (256, 65536), (65536, 128), (1481, 677)]
# (M, N, K): one to a few rows, ragged sides, more than the 512 x 512 x 2048 that fit one panel on each side, and N and
# K in sixteens, which cuBLASLt multiplies as they are.
GEMM_SHAPES = [
    (1, 1, 1), (1, 16, 16), (7, 15, 33), (17, 24, 712), (50, 33, 8), (64, 64, 64), (129, 130, 131),
    (1, 257, 513), (3, 1, 1000), (4, 67, 40), (5, 67, 40), (96, 128, 256), (24, 50, 17), (520, 30, 70),
    (2, 1031, 70), (9, 600, 2100),
    (33, 48, 160), (200, 256, 528), (16, 32, 2080), (2, 1024, 64),
]  # fmt: skip
LARGE_GEMM_SHAPES = [(530, 1030, 2065)]
EMPTY_GEMM_SHAPES = [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 7), (0, 0, 0)]


def shape_id(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


# --- scales ---------------------------------------------------------------------------------------

SCALES = {
    "one": 1.0,
    "power_of_two": 2.0**-5,
    "odd": 1.7,
    "third": 1 / 3,
    "large": 24575.3,
    "small": 3.1e-5,
    "max": 2.0**126,
    "min": 2.0**-126,
    "float_max": 3.4028234e38,
    "subnormal": 1e-40,
    "negative": -1.7,
    "zero": 0.0,
    "inf": math.inf,
    "nan": math.nan,
}

# --- what a backend cannot run --------------------------------------------------------------------

# {(backend, case): reason}, where case is a file of tests, a test, or [a part of its parameters].
_OWN_OPS = "what is tested here calls torch.ops.transcast, whichever backend a run has"
_OWN_OPS_FILES = (
    "compile fakes linear linear_autograd linear_cache linear_loading linear_main_grad linear_training linear_weights"
)
_BETWEEN = "torch makes no CUDA tensor whose address lies between elements"
UNSUPPORTED: dict[tuple[str, str], str] = {
    ("cuda", "test_S5_data_between_elements_is_refused"): _BETWEEN,
    ("cuda", "test_S5_gemm_arguments_between_elements_are_refused"): _BETWEEN,
    ("cuda", "test_flush_denormal_does_not_reach_a_gemm"): (
        "the switch is a CPU's; cuBLASLt need not keep the subnormal product of two scales, 2^-130"
    ),
    ("cuda", "test_bytes_on_each_instruction_set"): "instruction sets are the CPU backend's",
    ("cuda", "[1x32 E8M0*1x32 E8M0]"): "1x32 scales need compute capability 10.0: no such device was ever there",
    ("emu", "test_bytes_on_each_instruction_set"): "instruction sets are the CPU backend's",
    ("emu", "test_bytes_operator_shapes"): "too large to emulate; their small cousins run",
    ("emu", "test_S7_amax_over_2_31_elements"): "too large to emulate; far apart rows run",
    ("emu", "test_S7_transpose_of_over_2_31_elements"): "too large to emulate; far apart rows run",
    ("emu", "test_thread_counts_change_nothing"): "the emulator runs on one thread",
    ("emu", "test_flush_denormal_changes_nothing"): "slow to emulate; test_emu.py has a short one",
    ("emu", "test_a_device_without_kernels_is_refused_by_name"): "its ops have their own name",
    **{("emu", f"test_{file}.py"): _OWN_OPS for file in _OWN_OPS_FILES.split()},
}

# --- public bug reports, by id --------------------------------------------------------------------

# Of values, shapes, the layer, and graphs. Each is in the name of a test (test_S3_S4_...), or below.
_LAST = {"V": 8, "S": 10, "L": 13, "G": 4}
CASE_IDS = [f"{kind}{n + 1}" for kind, last in _LAST.items() for n in range(last)]

# {id: why it has no test yet}
DEFERRED: dict[str, str] = {
    "V6": "E8M0 scales: need the mxfp8 recipe",
    "L6": "amax history against loaded weights: needs the delayed recipe",
    "G2": "replay of a CUDA graph, a second device: need a GPU; captured ops and other devices are emulated",
    "G4": "one amax for all ranks: needs tensor parallelism",
}
# {id: which part has no test yet, and why}; the rest of it has
DEFERRED_PARTS: dict[str, str] = {
    "V2": "a row or block of zeros: its casts need the rowwise and blockwise recipes",
    "V7": "scales of blocks: need the mxfp8 and blockwise recipes; the scales of tensors are tested",
    "L4": "amax histories: need the delayed recipe",
    "L13": "amax histories: need the delayed recipe",
    "G3": "uint8 views for gloo: need FP8 communication; 4 ranks: tests use 2",
}

# --- benchmark rows -------------------------------------------------------------------------------


def _rows(ops: str, shapes: list[tuple[int, ...]], dtypes: str) -> list[dict]:
    return [{"op": op, "shape": s, "dtype": d} for op, s, d in product(ops.split(), shapes, dtypes.split())]


# shape: of the input; (M, N, K) for gemm, linear and decode. dtype: of the high-precision side (dequantize,
# gemm: of the output), a key of DTYPES.
BENCHMARKS: list[dict] = [
    *_rows(
        "amax cast cast_transpose quantize quantize_transpose dequantize",
        [(4096, 4096), (1024, 1024)],
        "bf16",
    ),
    *_rows("act_quantize_transpose dact_quantize_transpose_dbias", [(4096, 4096)], "bf16"),  # swiglu
    *_rows("dequantize", [(4096, 4096), (1024, 1024)], "fp32"),
    *_rows("gemm", [(1024, 1024, 1024), (2048, 2048, 2048), (8, 4096, 4096)], "fp32"),
    *_rows("linear_64", [(64, 64, 64)], "fp32 bf16"),
    *_rows("linear_1024", [(1024, 1024, 1024)], "fp32 bf16"),
    *_rows("linear_2048", [(2048, 2048, 2048)], "fp32 bf16"),
    *_rows("decode", [(1, 4096, 4096)], "fp32 bf16"),
]
