"""Indices of 64 bits in the CUDA kernels: tensors of more than 2^31 elements, most of whose blocks are left out.

The tensors are zeros that take no memory but for some tiles; only the blocks of these run. What has such a tensor for
an argument is hidden from tracebacks: torch prints FP8 and 16-bit types from a copy of all of it in FP32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import DTYPES, E4M3, fp8, normal, scalar, sum_bound
from conftest import assert_same_bytes, assert_within
from gemm_checks import operands
from gemm_emu import ALL_BUT_PLAIN, OPS, fresh, kernels_of  # noqa: F401
from layouts import far_rows, sparse_memory
from transcast import reference

BF16, F32 = torch.bfloat16, torch.float32
FAR = 2**31
SCALE = scalar(1.7)
EXECUTION_FAILED = 13  # cublasStatus_t


@pytest.fixture
def run(emu: Any) -> Callable[..., Any]:
    """Runs some blocks of an op's launches on a device that has a multiprocessor for each of their blocks.

    Blocks that are left out leave a slot as no other op may find it: no other test uses this device.
    """

    def run_blocks(blocks: list[int], op: str, *args: Any) -> Any:
        __tracebackhide__ = True
        emu.set_device(16)
        emu.configure(multiprocessors=2**28, blocks=blocks)
        try:
            return getattr(OPS, op)(*args)
        except Exception as error:
            failure = type(error)(str(error))
        raise failure

    return run_blocks


def test_only_some_blocks_run(emu, run):
    emu.count(True)
    run([0, -1, -4, 2, 5, -6], "dequantize", torch.zeros(5 * 4096).to(E4M3), SCALE, F32)
    assert emu.launches()[-1]["written"]["bytes"] == 4 * 4096 * 4  # 0, 4, 1, 2
    assert emu.launches()[-1]["grid"] == (5, 1, 1)


# --- contiguous data of any shape -----------------------------------------------------------------


def line(size: int, dtype: torch.dtype, offset: int, piece: int) -> tuple[Tensor, list[slice]]:
    """Zeros but for the first piece, those on either side of element 2^31, and the last one, which is short."""
    x = sparse_memory(offset + size, dtype)[offset:]
    starts = [0, FAR - piece, FAR, (size - 1) // piece * piece]
    places = [slice(start, min(start + piece, size)) for start in starts]
    for seed, place in enumerate(places):
        n = place.stop - place.start
        x[place] = fp8((n,), dtype, seed) if dtype.itemsize == 1 else normal((n,), dtype, seed)
    return x, places


def blocks_of(places: list[slice], piece: int) -> list[int]:
    return [place.start // piece for place in places]


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("offset, size", [(0, FAR + 12320), (3, FAR + 12325)], ids=["aligned", "unaligned"])
def test_dequantize_of_a_line(run, offset, size, dtype):
    q, places = line(size, E4M3, offset, 4096)
    y = run(blocks_of(places, 4096), "dequantize", q, SCALE, dtype)
    for place in places:
        want = reference.dequantize(q[place], SCALE, dtype)
        assert_same_bytes(y[place], want, f"codes {place}", any_nan=True)


@pytest.mark.parametrize("offset, size", [(0, FAR + 24584), (1, FAR + 24589)], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("op", ["cast", "act_cast"])
def test_cast_of_a_line(run, op, offset, size):
    x, places = line(size, BF16, offset, 8192)
    rest = (SCALE, E4M3) if op == "cast" else (SCALE, E4M3, "swiglu", x)
    q = run(blocks_of(places, 8192), op, x, *rest)[0]
    for place in places:
        want = getattr(reference, op)(x[place], *rest[:3], *(x[place],) * (len(rest) - 3))[0]
        assert_same_bytes(q[place], want, f"elements {place}")


# --- matrices -------------------------------------------------------------------------------------

# More than 2^32 elements, 2^32 rows, 2^31 elements from the first to the last row of a lane; the last tiles are short.
SQUARE, TALL, WIDE = (131072 + 35, 32768 + 264), (2 * FAR + 40, 1), (4, 2**30 + 272)
matrices = pytest.mark.parametrize("shape", [SQUARE, TALL, WIDE], ids=["square", "tall", "wide"])


class Matrix:
    """Zeros but for the first tile, that of element 2^31, its neighbours, and the last one."""

    def __init__(self, shape: tuple[int, int], dtype: torch.dtype, tile: tuple[int, int], between: int = 0):
        """``between``: elements between two rows."""
        (rows, cols), (tall, wide) = shape, tile
        self.x = sparse_memory(rows * (cols + between), dtype).view(rows, cols + between)[:, :cols]
        across, down = -(-cols // wide), -(-rows // tall)
        row, column = FAR // cols // tall, FAR % cols // wide
        tiles = {(0, 0), (row, column), (row - 1, column), (row, column - 1), (down - 1, across - 1)}
        tiles = sorted((r, c) for r, c in tiles if 0 <= r < down and 0 <= c < across)
        self.blocks = [r * across + c for r, c in tiles]
        self.count = down * across
        self.places = [(self.part(r, tall, rows), self.part(c, wide, cols)) for r, c in tiles]
        for seed, place in enumerate(self.places):
            at = self.x[place]
            at.copy_(fp8(at.shape, dtype, seed) if dtype.itemsize == 1 else normal(at.shape, dtype, seed))

    @staticmethod
    def part(i: int, size: int, end: int) -> slice:
        return slice(i * size, min((i + 1) * size, end))

    def check(self, q: Tensor | None, q_t: Tensor | None, want: Callable[[Tensor], Tensor]) -> None:
        """``want``: the codes of a tile, those of a second part beside those of the first."""
        __tracebackhide__ = True
        cols = self.x.shape[1]
        for rows, columns in self.places:
            codes = want(self.x[rows, columns])
            for part, of_part in enumerate(codes.split(columns.stop - columns.start, dim=1)):
                at = slice(part * cols + columns.start, part * cols + columns.stop)
                if q is not None:
                    assert_same_bytes(q[rows, at], of_part, f"q{[rows, at]}")
                if q_t is not None:
                    assert_same_bytes(q_t[at, rows], of_part.t(), f"q_t{[at, rows]}")


def cast(x: Tensor) -> Tensor:
    return reference.cast(x, SCALE, E4M3)[0]


@pytest.mark.parametrize("shape, between", [(SQUARE, 3), ((FAR // 40, 45), 1)], ids=["not_in_chunks", "narrow"])
def test_dequantize_of_strided_rows(run, shape, between):
    """256 elements per block, whatever their rows."""
    m = Matrix(shape, E4M3, (1, shape[1]), between)
    blocks = [r.start * shape[1] // 256 + i for r, _ in m.places for i in range(-(-shape[1] // 256) + 1)]
    y = run(blocks, "dequantize", m.x, SCALE, BF16)
    m.check(y, None, lambda q: reference.dequantize(q, SCALE, BF16))


@matrices
@pytest.mark.parametrize("between", [0, 16, 3])
def test_transpose(run, shape, between):
    m = Matrix(shape, E4M3, (32, 256), between)
    m.check(None, run(m.blocks, "transpose", m.x), lambda q: q)


@pytest.mark.parametrize("shape", [SQUARE, TALL, (2, FAR + 264)], ids=["square", "tall", "wide"])
@pytest.mark.parametrize("between", [8, 3])
def test_cast_of_strided_rows(run, shape, between):
    m = Matrix(shape, BF16, (32, 256), between)
    m.check(run(m.blocks, "cast", m.x, SCALE, E4M3)[0], None, cast)


@matrices
@pytest.mark.parametrize("between", [0, 3])
def test_cast_transpose(run, shape, between):
    m = Matrix(shape, BF16, (32, 256), between)
    q, _, q_t, _ = run(m.blocks, "cast_transpose", m.x, SCALE, E4M3)
    m.check(q, q_t, cast)


def test_dbias_of_tiles_whose_sums_take_over_2_31_bytes(run):
    """The sums of tiles that do not run are zeros, as fresh memory is."""
    m = Matrix((2**15, 2**19 + 264), BF16, (32, 256))
    q, _, q_t, dbias, _ = run([*m.blocks, -1], "cast_transpose_dbias", m.x, SCALE, E4M3)
    m.check(q, q_t, cast)
    last = m.x[m.places[-1]].to(torch.float64)
    assert_within(dbias[-8:], last.sum(0), sum_bound(last), "dbias")


@pytest.mark.parametrize("between", [0, 3])
def test_dact_cast_transpose_of_two_parts(run, between):
    m = Matrix(SQUARE, BF16, (32, 256), between)
    op, rest = "dact_cast_transpose_dbias", (SCALE, E4M3, "swiglu")
    q, _, q_t, *_ = run(m.blocks, op, m.x, m.x, *rest, m.x)
    m.check(q, q_t, lambda x: getattr(reference, op)(x, x, *rest, x)[0])


@pytest.mark.parametrize("shape", [SQUARE, TALL, WIDE, (FAR + 40, 8)], ids=["square", "tall", "wide", "octets"])
@pytest.mark.parametrize("between", [0, 8, 3])
def test_cast_of_many_matrices(run, shape, between):
    """The scale is left at 0, as no amax is complete: NaNs alone tell where codes come from.

    Nothing tells what the amax is of; aligned rows outside of the matrix are a fault. Where x takes more memory than q
    and q_t together, as 8 elements between rows make it, they do not lie where 32 bits would lead either.
    """
    m = Matrix(shape, BF16, (128, 256), between)
    for place in m.places:
        m.x[place] = torch.where(m.x[place] > 0, torch.nan, 0.0).to(BF16)
    blocks = [m.count - 1 - block for block in m.blocks]  # of the cast, which begins at the end
    (q,), _, (q_t,), _ = run([*m.blocks, *blocks], "multi_quantize_transpose", [m.x], E4M3)
    m.check(q, q_t, lambda x: reference.cast(x, scalar(0.0), E4M3)[0])


# --- around a GEMM --------------------------------------------------------------------------------


def blocks_of_rows(rows: list[int], pieces: int, per_block: int) -> list[int]:
    """Of kernels whose blocks take so many pieces, which a row has ``pieces`` of."""
    return sorted({(row * pieces + i) // per_block for row in rows for i in range(pieces)})


@pytest.mark.parametrize("columns", [32768 + 264, 32768 + 259], ids=["whole", "not whole"])
@pytest.mark.parametrize("dtype", [*DTYPES.values(), E4M3])
def test_outputs_of_a_gemm(run, columns, dtype):
    """Of no depth: there is no product, whose every element the emulated library would compute."""
    m, one = 131072 + 35, scalar(1.0)
    a, b = torch.empty(m, 0, dtype=E4M3), torch.empty(columns, 0, dtype=E4M3)
    bias = normal((columns,), torch.float16 if dtype == torch.float16 else BF16)
    rows = [0, FAR // columns, FAR // columns + 1, m - 1]
    blocks = blocks_of_rows(rows, -(-columns // 8), 256)
    op, rest = "gemm", (one, one, bias, "relu", None, dtype, False)
    if dtype == E4M3:
        op, rest = "gemm_fp8", (one, one, SCALE, bias, "relu", dtype, False, None)
    y, want = run(blocks, op, a, b, *rest), getattr(reference, op)(a[:1], b, *rest)
    if dtype == E4M3:
        y, want = y[0], want[0]
    for row in rows:
        assert_same_bytes(y[row : row + 1], want, f"row {row}")


def apart(x: Tensor) -> Tensor:
    """A copy whose rows, few as they are, lie far apart and in whole chunks."""
    return far_rows(x, 2**29)


@pytest.mark.parametrize("columns", [32, 7], ids=["whole", "not whole"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_epilogues_of_rows_far_apart(emu, dtype, columns):
    emu.configure_cublaslt(refuse_epilogues=ALL_BUT_PLAIN)
    args = operands((6, columns, 48))
    made = []
    for placed in (torch.clone, apart):
        out, aux, gradient = (placed(normal((6, columns), dtype, seed)) for seed in range(3))
        OPS.gemm_out(*args, None, "gelu_tanh", None, False, False, out, aux)
        OPS.gemm_out(*args, None, "dgelu", aux, False, False, gradient, None)
        if dtype != torch.float16:
            OPS.gemm_out(*args, None, "none", None, False, True, out, None)
        made.append((out, aux, gradient))
    for name, near, far in zip(("out", "aux", "gradient"), *made):
        assert_same_bytes(far.contiguous(), near, name)


@pytest.mark.parametrize("version, kernel", [(130000, "arrange_kernel"), (120800, "epilogue_kernel")])
def test_scales_of_rows_far_apart(emu, version, kernel):
    """Where the library does not take scales of rows, the epilogue does."""
    emu.configure_cublaslt(version=version)
    a, b, *_ = operands((24, 32, 48))
    scales = [normal((n, 1), F32, n).abs() for n in (24, 32)]
    made = []

    def multiply(scales):
        made.append(OPS.gemm(a, b, *scales, None, "none", None, F32, False))

    multiply(scales)
    assert kernel in kernels_of(emu, lambda: multiply([apart(scale) for scale in scales]))
    assert_same_bytes(made[1], made[0], "gemm")


def test_operands_of_rows_far_apart(emu):
    a, b, *scales = operands((6, 7, 50))
    rest = (*scales, None, "none", None, F32, False)
    assert_same_bytes(OPS.gemm(apart(a), apart(b), *rest), OPS.gemm(a, b, *rest), "gemm")


def test_an_operand_that_is_copied(emu, run):
    """What is stored outside of the copy is a fault; the library fails behind it."""
    rows, columns = 131072 + 35, 32768 + 259
    a, b = sparse_memory(rows * columns, E4M3).view(rows, columns), fp8((16, columns), E4M3)
    emu.fail_next("cublasLtMatmul", EXECUTION_FAILED)
    blocks = blocks_of_rows([0, FAR // columns + 1, rows - 1], -(-columns // 512), 8)
    with pytest.raises(RuntimeError, match="cublasLtMatmul failed"):
        run(blocks, "gemm", a, b, scalar(1.0), scalar(1.0), None, "none", None, BF16, False)
