"""transpose: FP8 (R, C) -> (C, ceil16(R)), zero-padded."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from cases import E4M3, E5M2, LARGE_SHAPES, SHAPES, all_codes, fp8, shape_id
from conftest import assert_matches_reference, assert_same_bytes, formats
from layouts import LAYOUTS, fp8_views



@formats
@pytest.mark.parametrize("shape", [*SHAPES, *LARGE_SHAPES], ids=shape_id)
def test_bytes_shapes(backend, shape, fmt):
    (q_t,) = assert_matches_reference(backend, "transpose", fp8(shape, fmt))
    assert q_t.shape[1] % 16 == 0 and q_t.is_contiguous()


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 31, 33, 63, 64, 65, 80, 127, 128, 129])
@pytest.mark.parametrize("cols", [1, 15, 16, 17, 100, 128, 129, 144, 255, 256, 257])
def test_S8_ragged_tiles(backend, rows, cols):
    assert_matches_reference(backend, "transpose", fp8((rows, cols), E4M3))


@formats
def test_bytes_every_code(backend, fmt):
    """Codes are moved, never interpreted: NaN payloads and -0 stay."""
    for q in (all_codes(fmt).view(16, 16), all_codes(fmt).view(2, 128), all_codes(fmt).view(128, 2)):
        assert_matches_reference(backend, "transpose", q)


@formats
@pytest.mark.parametrize("layout", LAYOUTS)
def test_S3_S4_S5_layouts(backend, layout, fmt):
    assert_matches_reference(backend, "transpose", LAYOUTS[layout](lambda shape: fp8(shape, fmt)))


@given(q=fp8_views(E4M3) | fp8_views(E5M2))
def test_bytes_any_view(backend, q):
    assert_matches_reference(backend, "transpose", q)


@pytest.mark.parametrize("rows, cols", [(1, 33), (7, 33), (17, 100), (24, 5), (50, 128)])
def test_S9_padding_is_written(backend, rows, cols):
    """The output's memory held 0xAA before: what is not written shows."""
    q = fp8((rows, cols), E4M3)
    for _ in range(4):
        held = [torch.full((cols, -(-rows // 16) * 16), 0xAA, dtype=torch.uint8) for _ in range(8)]
        del held
        assert not backend.run("transpose", q)[:, rows:].view(torch.uint8).any()


def test_twice_is_the_identity(backend):
    q = fp8((48, 80), E5M2)
    assert_same_bytes(backend.run("transpose", backend.run("transpose", q)), q, "transpose of a transpose")
