"""The CUDA kernels on the emulator: every op on small data of every layout, blocks and threads in any order.

Seeded faults (`make mutants`) meet these tests first: they are quick and reach every line of
csrc/cuda but those of GEMMs, which test_gemm*.py are for; test_cuda_indices.py has more than 2^31 elements.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from act_args import act_args, activations, dact_args, gradient_for
from cases import E4M3, E5M2, SPECIAL_VALUES, fp8, normal, scalar
from conftest import Backend, assert_matches_reference, assert_same_bytes, formats

# Schedule -> device and its multiprocessors: few make kernels loop over the grid, many make small tiles.
# Launchers ask a device once, so that each number needs one of its own.
ORDERS = {"forward": (0, 4), "reverse": (6, 1), "random": (7, 132)}


def begin(emu: Any, schedule: str) -> None:
    device, multiprocessors = ORDERS[schedule]
    emu.set_device(device)
    emu.configure(schedule=schedule, multiprocessors=multiprocessors)


@pytest.fixture(params=ORDERS)
def backend(request: pytest.FixtureRequest, emu: Any) -> Backend:
    begin(emu, request.param)
    return Backend(request.param, torch.ops.transcast_emu, torch.device("cpu"))


@pytest.fixture
def once(emu: Any) -> Backend:
    """For what does not depend on the order."""
    return Backend("emu", torch.ops.transcast_emu, torch.device("cpu"))


# --- every op, every layout -----------------------------------------------------------------------


def swiglu_gradient(op: str, x: Tensor, fmt: torch.dtype) -> tuple[Any, ...]:
    return dact_args(op, gradient_for(x, "swiglu", x), x, "swiglu", x.flip(0), fmt)


# Name -> op and what makes its arguments from data and a format.
Call = tuple[str, Callable[[Tensor, torch.dtype], tuple[Any, ...]]]
CALLS: dict[str, Call] = {
    "amax": ("amax", lambda x, fmt: (x,)),
    "cast": ("cast", lambda x, fmt: (x, scalar(1.7), fmt)),
    "cast_transpose": ("cast_transpose", lambda x, fmt: (x, scalar(1.7), fmt)),
    "cast_transpose_dbias": ("cast_transpose_dbias", lambda x, fmt: (x, scalar(1.7), fmt)),
    "quantize": ("quantize", lambda x, fmt: (x, fmt)),
    "quantize_transpose": ("quantize_transpose", lambda x, fmt: (x, fmt, True, 1)),
    "quantize_transpose_dbias": ("quantize_transpose_dbias", lambda x, fmt: (x, fmt, False, 2)),
    "multi": ("multi_quantize_transpose", lambda x, fmt: ([x, x[..., :3], x.flip(0)], fmt, False, 1)),
    "gelu_tanh": ("act_cast", lambda x, fmt: act_args("act_cast", x, "gelu_tanh", None, fmt)),
    "silu": ("act_quantize_transpose", lambda x, fmt: (x, fmt, "silu", None)),
    "swiglu": (
        "act_cast_transpose",
        lambda x, fmt: act_args("act_cast_transpose", x, "swiglu", x.flip(0), fmt),
    ),
    "swiglu_quantize": ("act_quantize", lambda x, fmt: (x, fmt, "swiglu", x.flip(0))),
    "dsilu": (
        "dact_quantize_transpose_dbias",
        lambda x, fmt: (gradient_for(x, "silu", None), x, fmt, "silu", None),
    ),
    "dgelu_tanh": (
        "dact_cast_transpose_dbias",
        lambda x, fmt: (gradient_for(x, "gelu_tanh", None), x, scalar(0.7), fmt, "gelu_tanh", None),
    ),
    "dswiglu": (
        "dact_cast_transpose_dbias",
        lambda x, fmt: swiglu_gradient("dact_cast_transpose_dbias", x, fmt),
    ),
    "dswiglu_quantize": (
        "dact_quantize_transpose_dbias",
        lambda x, fmt: swiglu_gradient("dact_quantize_transpose_dbias", x, fmt),
    ),
}
calls = pytest.mark.parametrize("call", CALLS)

# One format per dtype: how data moves does not depend on the pair.
PAIRS = [(torch.float32, E5M2), (torch.bfloat16, E4M3), (torch.float16, E4M3)]

# Rows and columns beyond one tile, exactly some, and few; rows that begin at any address; contiguous or not.
Make = Callable[[tuple[int, ...]], Tensor]
LAYOUTS: dict[str, Callable[[Make], Tensor]] = {
    "aligned": lambda make: make((136, 272)),
    "ragged": lambda make: make((45, 301)),
    "columns_in_eights": lambda make: make((50, 312))[:, 16:288],
    "columns_not_in_eights": lambda make: make((19, 64))[:, :29],
    "offset": lambda make: make((20 * 272 + 3,))[3:].view(20, 272),
    "offset_slice": lambda make: make((37, 300))[:, 5:271],
    "narrow": lambda make: make((150, 3)),
    "one": lambda make: make((1, 1)),
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)


@formats
@layouts
def test_bytes_of_codes(backend, layout, fmt):
    q = LAYOUTS[layout](lambda shape: fp8(shape, fmt, 7))
    assert_matches_reference(backend, "transpose", q)
    for dtype, _ in PAIRS:
        assert_matches_reference(backend, "dequantize", q, scalar(1.7), dtype)


@calls
@layouts
def test_bytes(backend, call, layout):
    """Over the orders, each call and layout meets each dtype."""
    places = (list(CALLS).index(call), list(LAYOUTS).index(layout), list(ORDERS).index(backend.name))
    dtype, fmt = PAIRS[sum(places) % 3]
    op, arguments = CALLS[call]
    make = activations if op.startswith(("act", "dact")) else normal
    x = LAYOUTS[layout](lambda shape: make(shape, dtype, 7))
    assert_matches_reference(backend, op, *arguments(x, fmt))


@pytest.mark.parametrize("call", ["amax", "cast", "quantize", "swiglu_quantize"])
@pytest.mark.parametrize("columns", [256, 257, 300])
def test_bytes_where_blocks_take_several_tiles(emu, once, call, columns):
    begin(emu, "reverse")
    op, arguments = CALLS[call]
    x = activations((290, 300), torch.bfloat16)[:, :columns]
    assert_matches_reference(once, op, *arguments(x, E4M3))


@calls
@pytest.mark.parametrize("values", ["one_nan", "one_negative_inf", "zeros", "subnormals", "overflowing"])
def test_bytes_special_values(once, call, values):
    op, arguments = CALLS[call]
    for dtype in (torch.float32, torch.float16):
        assert_matches_reference(once, op, *arguments(SPECIAL_VALUES[values]((21, 40), dtype), E5M2))


@calls
@pytest.mark.parametrize("shape", [(0, 24), (24, 0)])
def test_bytes_empty(once, call, shape):
    op, arguments = CALLS[call]
    assert_matches_reference(once, op, *arguments(torch.empty(shape), E4M3))


# --- reductions -----------------------------------------------------------------------------------


# What finds the peak of x. Of many matrices only their scales come out.
PEAKS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "amax": lambda ops, x: ops.amax(x),
    "cast_transpose": lambda ops, x: ops.cast_transpose(x, scalar(1.0), E4M3)[-1],
    "multi": lambda ops, x: ops.multi_quantize_transpose([x[:3], x], E4M3)[1][1] * 448,
}
# Every lane of a block's first and last warp, and some lane of each warp; each of a lane's eight elements.
PLACES = [
    *((row, 8 * octet + octet % 8) for row in (0, 127) for octet in range(32)),
    *((row, 40 + row // 4 % 8) for row in range(0, 128, 4)),
]


@pytest.mark.parametrize("first_column", [0, 1])  # aligned rows, and rows that begin anywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("op", PEAKS)
def test_the_peak_in_every_lane_and_warp(emu, op, dtype, first_column):
    begin(emu, list(ORDERS)[(list(PEAKS).index(op) + first_column + (dtype == torch.float32)) % 3])
    x = torch.zeros(128, 256 + first_column, dtype=dtype)[:, first_column:]
    for row, column in PLACES:
        x[row, column] = -2.0**-20
        assert PEAKS[op](torch.ops.transcast_emu, x).item() == 2.0**-20, f"row {row}, column {column}"
        x[row, column] = 0


def test_dbias_has_the_same_bits_in_every_order(emu):
    x = normal((700, 300), torch.float32)
    seen = set()
    for seed, order in enumerate(["forward", "reverse", "random", "random"]):
        emu.configure(schedule=order, seed=seed)
        seen.add(torch.ops.transcast_emu.cast_transpose_dbias(x, scalar(1.0), E5M2)[3].numpy().tobytes())
    assert len(seen) == 1


def test_dbias_sums_what_is_not_scaled(once):
    """Integers: the sum is exact in any order; the scale would show, and so would a row counted twice."""
    x = torch.arange(300 * 20, dtype=torch.float32).reshape(300, 20) % 61
    for rows in (1, 8, 127, 129, 300):
        sums = once.run("cast_transpose_dbias", x[:rows], scalar(3.0), E5M2)[3]
        assert_same_bytes(sums, x[:rows].sum(0), f"dbias of {rows} rows")


def test_a_slot_is_left_as_it_was_found(once):
    """One slot serves all of them: each op begins at zero again."""
    x = torch.full((1,), 3.0)
    once.run("amax", x)
    big, small = torch.full((4, 256 * 32), 1e30), torch.full((4, 256 * 32), 1e-30)
    for _ in range(40):
        assert once.run("amax", big).item() == big[0, 0].item()
    for _ in range(100):
        assert once.ops.amax(x).item() == 3.0
    for _ in range(40):
        assert once.run("amax", small).item() == small[0, 0].item()


@pytest.mark.parametrize("call", ["amax", "cast_transpose", "quantize_transpose_dbias", "multi"])
def test_bytes_while_a_graph_is_captured(emu, once, call):
    """A captured op, whose replays may run beside others, zeroes a slot of its own, of the graph's memory."""
    op, arguments = CALLS[call]
    made = []
    for capturing in (False, False, True):
        emu.reset()
        emu.configure(capturing=capturing)
        assert_matches_reference(once, op, *arguments(normal((70, 300), torch.bfloat16), E4M3))
        made.append([emu.calls().get(name, 0) for name in ("workspace", "cudaMemsetAsync", "cudaMalloc")])
    _, eager, captured = made
    own = 0 if call == "multi" else 1  # the slots of many matrices are always the op's own
    assert captured == [eager[0] + own, eager[1] + own, 0]


# --- scales ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("amax", [448.0, 3.3e38, 1e-37, 1e-45, 7.0, 6.9999995])
@pytest.mark.parametrize("pow2, margin", [(False, 0), (True, 0), (False, 64), (True, -64), (True, 3)])
def test_bytes_of_scales(once, amax, pow2, margin):
    x = torch.tensor([amax, -amax / 3, 0.0])
    for fmt in (E4M3, E5M2):
        assert_matches_reference(once, "quantize", x, fmt, pow2, margin)
        assert_matches_reference(once, "multi_quantize_transpose", [x], fmt, pow2, margin)


@pytest.mark.parametrize("scale", [math.nan, math.inf, 0.0, -2.0])
def test_bytes_of_given_scales(once, scale):
    for op in ("cast", "cast_transpose"):
        assert_matches_reference(once, op, normal((9, 300), torch.float32), scalar(scale), E4M3)


def test_bytes_of_more_matrices_than_one_launch_takes(once):
    """401: a pair of launches takes 400."""
    xs = [torch.full((1, 1 + i % 3), 1.5 ** (i % 40), dtype=torch.bfloat16) for i in range(402)]
    assert_matches_reference(once, "multi_quantize_transpose", xs, E4M3)


@calls
@pytest.mark.parametrize("ops", [torch.ops.transcast, torch.ops.transcast_emu], ids=["cpu", "emu"])
def test_inputs_stay_lazy_clones(emu, ops, call):
    """Ops that ask for an input's memory as if they wrote to it would copy it."""
    op, arguments = CALLS[call]
    given = arguments(activations((20, 24), torch.bfloat16), E4M3)
    clones = []

    def lazy(value: Any) -> Any:
        if isinstance(value, Tensor):
            clones.append(torch._lazy_clone(value))
            return clones[-1]
        return [lazy(one) for one in value] if isinstance(value, list) else value

    getattr(ops, op)(*map(lazy, given))
    assert clones and all(map(torch._C._is_cow_tensor, clones))


# --- addresses ------------------------------------------------------------------------------------


NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, which Python's mmap does not name before 3.13


def far_apart(dtype: torch.dtype, columns: int, extra: int) -> Tensor:
    """Three rows whose last one begins behind 2^31 elements: reserved memory, of which little is used."""
    stride = 2**30 + extra
    elements = 2 * stride + columns
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    memory = mmap.mmap(-1, elements * dtype.itemsize, flags=flags)
    x = torch.frombuffer(memory, dtype=dtype).as_strided((3, columns), (stride, 1))
    data = fp8(x.shape, dtype) if dtype.itemsize == 1 else normal(x.shape, dtype)
    return x.copy_(data)


@pytest.mark.parametrize("extra", [16, 17])
def test_S7_offsets_beyond_31_bits(once, extra):
    x = far_apart(torch.bfloat16, 272, extra)
    for call in ("amax", "cast", "cast_transpose", "multi"):
        op, arguments = CALLS[call]
        if call == "multi":
            assert_matches_reference(once, op, [x], E4M3)
        else:
            assert_matches_reference(once, op, *arguments(x, E4M3))
    q = far_apart(E4M3, 272, extra)
    assert_matches_reference(once, "transpose", q)
    assert_matches_reference(once, "dequantize", q, scalar(0.5), torch.bfloat16)


@pytest.mark.parametrize("offset", range(16))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, E4M3])
def test_bytes_at_every_address(once, dtype, offset):
    """Segments that begin and end at every byte of a chunk."""
    size = 17 * 16 + 5 + offset
    data = fp8((3, 400), dtype) if dtype == E4M3 else normal((3, 400), dtype)
    columns = [slice(offset, offset + 3 + offset), slice(offset, size - offset), slice(offset, offset + 40)]
    for x in [data[1:2, offset : offset + size], *(data[:, some] for some in columns)]:
        if dtype == E4M3:
            assert_matches_reference(once, "transpose", x)
        else:
            assert_matches_reference(once, "cast_transpose", x, scalar(1.7), E4M3)
            assert_matches_reference(once, "cast", x, scalar(1.7), E4M3)
