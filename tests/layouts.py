"""Layouts by name, hypothesis strategies that draw shapes, strides and offsets, and rows that lie far apart."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor

from cases import fp8, normal

Make = Callable[[tuple[int, ...]], Tensor]


def _inside(shape: tuple[int, ...], make: Make, before: tuple[int, ...], after: tuple[int, ...]) -> Tensor:
    """A view of ``shape`` inside a larger tensor, so many elements from its edges."""
    big = make(tuple(b + n + a for b, n, a in zip(before, shape, after)))
    return big[tuple(slice(b, b + n) for b, n in zip(before, shape))]


# S3, S4, S5 of the cases: views that an op must read exactly like their contiguous copy.
LAYOUTS: dict[str, Callable[[Make], Tensor]] = {
    "transposed": lambda make: make((37, 130)).t(),
    "column_slice": lambda make: _inside((33, 50), make, (0, 7), (0, 12)),
    "512_inside_1024": lambda make: _inside((512, 512), make, (3, 512), (509, 0)),
    "every_other_row": lambda make: make((40, 65))[1::2],
    "every_third_column": lambda make: make((20, 99))[:, ::3],
    "permuted_4d": lambda make: make((3, 5, 4, 7)).permute(2, 0, 3, 1),
    "heads_merged_last": lambda make: make((2, 6, 9, 8)).transpose(1, 2),
    "expanded_rows": lambda make: make((1, 70)).expand(19, 70),
    "expanded_rows_of_64": lambda make: make((1, 64)).expand(19, 64),
    "expanded_rows_of_32": lambda make: make((1, 32)).expand(16, 32),
    "expanded_columns": lambda make: make((19, 1)).expand(19, 70),
    "expanded_scalar": lambda make: make((1, 1)).expand(33, 17),
    "overlapping_windows": lambda make: make((200,)).unfold(0, 24, 5),
    "overlapping_windows_of_32": lambda make: make((288,)).unfold(0, 32, 16),
    "offset_of_one": lambda make: make((16 * 48 + 1,))[1:].view(16, 48),
    "one_row_of_a_matrix": lambda make: make((5, 300))[3],
    "one_column_of_a_matrix": lambda make: make((300, 5))[:, 3],
    "stride_of_a_row_of_one": lambda make: make((7, 9)).as_strided((1, 5), (1000, 2)),
}


@st.composite
def views(draw: st.DrawFn, make: Make) -> Tensor:
    """A 1-D to 4-D view: any offset, order of dims, slices with steps, expanded dims; empty ones included."""
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 15, 16, 17, 33]), min_size=1, max_size=4))
    while torch.Size(sizes).numel() > 20000:
        sizes.pop()
    offset = draw(st.integers(0, 9))
    x = make((offset + torch.Size(sizes).numel(),))[offset:].view(sizes)
    x = x.permute(draw(st.permutations(range(x.dim()))))
    for dim in range(x.dim()):
        change = draw(st.sampled_from(["none", "none", "slice", "step", "expand"]))
        if change == "slice":
            start = draw(st.integers(0, x.shape[dim]))
            x = x.narrow(dim, start, draw(st.integers(0, x.shape[dim] - start)))
        elif change == "step":
            x = x[(slice(None),) * dim + (slice(None, None, draw(st.integers(2, 3))),)]
        elif change == "expand" and x.shape[dim] == 1:
            x = x.expand(*x.shape[:dim], draw(st.integers(2, 20)), *x.shape[dim + 1 :])
    return x


def high_precision_views() -> st.SearchStrategy[Tensor]:
    dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
    seeds = st.integers(0, 3)
    return st.tuples(dtypes, seeds).flatmap(lambda drawn: views(lambda shape: normal(shape, *drawn)))


def fp8_views(fmt: torch.dtype) -> st.SearchStrategy[Tensor]:
    return st.integers(0, 3).flatmap(lambda seed: views(lambda shape: fp8(shape, fmt, seed)))


# --- more memory than there is --------------------------------------------------------------------

MAP_NORESERVE = 0x4000


def sparse_memory(count: int, dtype: torch.dtype) -> Tensor:
    """Zeros that take memory only where they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, count * dtype.itemsize, flags=flags), dtype=torch.uint8).view(dtype)


def far_rows(values: Tensor, stride: int | None = None) -> Tensor:
    """A view equal to the matrix ``values`` whose last row starts beyond 2^31 elements, or whose rows do so far apart."""
    rows, cols = values.shape
    stride = stride or 2**31 // (rows - 1) + 77
    view = sparse_memory((rows - 1) * stride + cols, values.dtype).as_strided((rows, cols), (stride, 1))
    return view.copy_(values)
