"""What the ops touch: nothing before or after their tensors, 64-bit offsets, any alignment."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from act_args import act_args, dact_args
from cases import (
    ACT_OPS,
    CAST_OPS,
    DACT_OPS,
    DTYPES,
    E4M3,
    E5M2,
    FORMATS,
    QUANTIZE_OPS,
    fp8,
    normal,
    scalar,
    shape_id,
)
from conftest import assert_matches_reference, assert_same_bytes, moved
from layouts import far_rows, sparse_memory

F32, BF16 = torch.float32, torch.bfloat16

# --- guard pages: each tensor borders on memory that must not be touched --------------------------

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(x: Tensor, where: str) -> Tensor:
    """A copy of ``x`` whose last byte ("end") or first byte ("start") borders on a forbidden page."""
    size = x.numel() * x.element_size()
    pages = -(-size // PAGE)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = LIBC.mmap(None, (pages + 2) * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    for page in (0, pages + 1):
        assert LIBC.mprotect(base + page * PAGE, PAGE, 0) == 0
    start = base + PAGE + (pages * PAGE - size if where == "end" else 0)
    memory = torch.frombuffer((ctypes.c_uint8 * size).from_address(start), dtype=torch.uint8)
    return memory.copy_(x.reshape(-1).view(torch.uint8)).view(x.dtype).view(x.shape)


def touch(where: str) -> None:
    """Every op on guarded tensors; a stray access ends the process."""
    ops = torch.ops.transcast
    shapes = [(1, n) for n in (*range(1, 70), 127, 128, 129, 200)] + [(n, 1) for n in (2, 15, 16, 17, 65)]
    shapes += [(3, 5), (17, 33), (64, 15), (65, 129), (130, 131), (8352, 1), (8352, 3)]
    one = guarded(scalar(1.0), where)
    for shape in shapes:
        for dtype in DTYPES.values():
            full = guarded(normal(shape, dtype), where)
            for x in (full, full[:, : max(1, shape[1] - 3)], full.t()):
                ops.amax(x)
                for fmt in FORMATS.values():
                    ops.cast(x, one, fmt)
                    ops.cast_transpose_dbias(x, one, fmt)
                ops.quantize_transpose_dbias(x, E4M3)
                ops.act_quantize(x, E4M3, "gelu_tanh")
                ops.act_cast_transpose(x, one, E4M3, "swiglu", x)
                ops.dact_quantize_transpose_dbias(x, x, E5M2, "swiglu", x)
                ops.multi_quantize_transpose([x, one.view(1), x], E5M2)
        for fmt in FORMATS.values():
            full = guarded(fp8(shape, fmt), where)
            for q in (full, full[:, : max(1, shape[1] - 3)], full.t()):
                ops.transpose(q)
                for dtype in DTYPES.values():
                    ops.dequantize(q, one, dtype)
    for m, n, k in [(1, 1, 1), (1, 5, 33), (3, 66, 70), (4, 7, 16), (5, 7, 17), (20, 33, 65), (33, 1, 130)]:
        for a_format, b_format in ((E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)):
            a, b = guarded(fp8((m, k), a_format), where), guarded(fp8((n, k), b_format), where)
            for dtype in DTYPES.values():
                bias, aux, out = (guarded(normal(s, dtype), where) for s in ((n,), (m, n), (m, n)))
                ops.gemm(a, b, one, one, bias, "dgelu", aux, dtype, False)
                ops.gemm_out(a, b, one, one, bias, "gelu_tanh", None, False, False, out, aux)
                ops.gemm_out(a, b, one, one, bias, "none", None, False, dtype != torch.float16, out, None)
                ops.gemm_fp8(a, b, one, one, one, bias, "gelu_tanh", E4M3, False, aux)


@pytest.mark.parametrize("where", ["end", "start"])
def test_S6_nothing_is_touched_outside(where):
    """Runs in a process of its own, which a stray access would end."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_memory; test_memory.touch(sys.argv[2])"
    command = [sys.executable, "-X", "faulthandler", "-c", code, str(Path(__file__).parent), where]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]


# --- alignment ------------------------------------------------------------------------------------


def at_byte(values: Tensor, byte: int) -> Tensor:
    """A copy of ``values`` whose address lies ``byte`` bytes behind a multiple of 16."""
    memory = torch.zeros(values.numel() * values.element_size() + byte + 16, dtype=torch.uint8)
    start = -memory.data_ptr() % 16 + byte
    size = values.numel() * values.element_size()
    memory[start : start + size] = values.reshape(-1).view(torch.uint8)
    x = torch.frombuffer(memory.numpy(), dtype=values.dtype, offset=start, count=values.numel())
    assert x.data_ptr() % 16 == byte
    return x.view(values.shape)


# The ops by the kind of their first tensor, and what follows it.
CALLS = {
    "amax": (DTYPES.values(), ()),
    **{op: (DTYPES.values(), (scalar(1.7), E4M3)) for op in CAST_OPS},
    **{op: (DTYPES.values(), (E5M2,)) for op in QUANTIZE_OPS},
    **{op: (DTYPES.values(), act_args(op, None, "silu", None, E4M3)[1:]) for op in ACT_OPS},
    "transpose": (FORMATS.values(), ()),
    "dequantize": (FORMATS.values(), (scalar(1.7), BF16)),
}
AT_BYTES = [
    (op, dtype, byte) for op, (dtypes, _) in CALLS.items() for dtype in dtypes for byte in (1, 2, 3, 4, 6, 8)
]


@pytest.mark.parametrize("op, dtype, byte", [c for c in AT_BYTES if c[2] % c[1].itemsize == 0], ids=str)
def test_S5_data_at_any_aligned_byte(backend, op, dtype, byte):
    x = at_byte(normal((33, 65), dtype) if dtype in DTYPES.values() else fp8((33, 65), dtype), byte)
    assert_matches_reference(backend, op, x, *CALLS[op][1])


def misaligned(op: str, argument: str, dtype: torch.dtype):
    words = f"transcast::{op}: {argument} must be aligned to its {dtype.itemsize}-byte elements"
    return pytest.raises(ValueError, match=words)


@pytest.mark.parametrize("op, dtype, byte", [c for c in AT_BYTES if c[2] % c[1].itemsize], ids=str)
def test_S5_data_between_elements_is_refused(backend, op, dtype, byte):
    x = at_byte(normal((33, 65), dtype), byte)
    with misaligned(op, "x", dtype):
        backend.run(op, x, *CALLS[op][1])


GEMM_ARGUMENTS = {
    "gemm": ("a_scale_inv", "b_scale_inv", "bias", "aux"),
    "gemm_out": ("a_scale_inv", "b_scale_inv", "bias", "aux", "out"),
    "gemm_fp8": ("a_scale_inv", "b_scale_inv", "out_scale", "bias", "aux_out"),
}


@pytest.mark.parametrize("op, argument", [(op, a) for op, names in GEMM_ARGUMENTS.items() for a in names])
def test_S5_gemm_arguments_between_elements_are_refused(backend, op, argument):
    a, b, one, bias, matrix = fp8((5, 33), E4M3), fp8((7, 33), E4M3), scalar(1.0), normal((7,), F32), (5, 7)
    args = dict(a=a, b=b, a_scale_inv=one, b_scale_inv=one, bias=bias, epilogue="none", fast_accum=False)
    args |= {
        "gemm": dict(aux=normal(matrix, F32), epilogue="dgelu", out_dtype=F32),
        "gemm_out": dict(
            aux=normal(matrix, F32), epilogue="dgelu", out=torch.zeros(matrix), aux_out=None, accumulate=False
        ),
        "gemm_fp8": dict(
            out_scale=one, epilogue="gelu_tanh", dtype=E4M3, aux_out=torch.zeros(matrix, dtype=BF16)
        ),
    }[op]
    getattr(backend.ops, op)(**args)
    args[argument] = at_byte(args[argument], 1)
    with misaligned(op, argument, args[argument].dtype):
        getattr(backend.ops, op)(**args)


# --- more than 2^31 elements ----------------------------------------------------------------------

@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_S7_rows_beyond_2_31_elements(backend, dtype):
    x = far_rows(normal((5, 200), dtype))
    assert_matches_reference(backend, "amax", x)
    for op in CAST_OPS:
        assert_matches_reference(backend, op, x, scalar(1.7), E4M3)
    for op in QUANTIZE_OPS:
        assert_matches_reference(backend, op, x, E5M2)
    for op in ACT_OPS:
        assert_matches_reference(backend, op, *act_args(op, x, "swiglu", None, E4M3))
        assert_matches_reference(backend, op, *act_args(op, normal((5, 200), dtype, 1), "swiglu", x, E4M3))
    for op in DACT_OPS:
        assert_matches_reference(backend, op, *dact_args(op, x, x, "gelu_tanh", None, E5M2))
    assert_matches_reference(backend, "multi_quantize_transpose", [x, x], E4M3)


def test_S7_fp8_rows_beyond_2_31_elements(backend):
    q = far_rows(fp8((5, 200), E4M3))
    assert_matches_reference(backend, "transpose", q)
    assert_matches_reference(backend, "dequantize", q, scalar(1.7), BF16)


@pytest.mark.parametrize("rows", [3, 6])
def test_S7_gemm_rows_beyond_2_31_elements(backend, rows):
    a, b = fp8((rows, 50), E4M3, 1), fp8((7, 50), E4M3, 2)
    rest = (scalar(2.0**-9), scalar(2.0**-4), None, "gelu_tanh", None, False, False)
    near = [torch.zeros(rows, 7), torch.zeros(rows, 7)]
    far = [far_rows(t) for t in near]
    outputs = []
    for x, y, written in ((a, b, near), (far_rows(a), far_rows(b), far)):
        written = moved(written, backend.device)
        backend.ops.gemm_out(*moved((x, y, *rest), backend.device), *written)
        outputs.append([t.contiguous() for t in written])
    for want, got in zip(*outputs):
        assert_same_bytes(got, want, "gemm_out")


def test_S7_amax_over_2_31_elements(backend):
    x = sparse_memory(2**31 + 70, BF16)
    x[-1] = -3.0
    assert backend.run("amax", x).item() == 3.0


@pytest.mark.parametrize("shape", [(65552, 32768), (32768, 65552)], ids=shape_id)
def test_S7_transpose_of_over_2_31_elements(backend, shape):
    """Mostly zeros: the few codes that are set must arrive, and nothing else."""
    rows, cols = shape
    q = sparse_memory(rows * cols, E4M3).view(rows, cols)
    places = [
        (0, 0),
        (rows - 1, cols - 1),
        (rows - 1, 0),
        (0, cols - 1),
        (rows // 2, cols // 2),
        (rows - 17, cols - 3),
    ]
    for value, (r, c) in enumerate(places, start=1):
        q.view(torch.uint8)[r, c] = value
    q_t = backend.run("transpose", q).view(torch.uint8)
    assert [q_t[c, r].item() for r, c in places] == [1, 2, 3, 4, 5, 6]
    assert int(torch.count_nonzero(q_t.view(torch.int64))) == len(places)
