"""What a run with --backend cuda rests on: tensors keep their layout, nothing runs on the CPU unnoticed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import conftest
from cases import E4M3, fp8, fp8_integers, normal, scalar, shape_id
from conftest import (
    ALIGNMENT,
    DeviceOps,
    assert_same_bytes,
    assert_within,
    emulates,
    laid_out_alike,
    moved,
)
from gemm_checks import EXACT_SHAPES, arithmetic_on, bound_of, operands
from layouts import LAYOUTS, far_rows
from test_memory import at_byte
from transcast import reference

CPU, META = torch.device("cpu"), torch.device("meta")


def byte_of(x: torch.Tensor) -> int:
    """Where its first element lies in its storage, behind a multiple of what devices align."""
    return x.storage_offset() * x.element_size() % ALIGNMENT


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_moved_view_keeps_its_strides_and_its_alignment(layout):
    for make in (lambda shape: normal(shape, torch.float32), lambda shape: fp8(shape, E4M3)):
        x = LAYOUTS[layout](make)
        there, copy = moved(x, META), laid_out_alike(x, CPU)
        for other in (there, copy):
            assert (other.shape, other.stride(), other.dtype) == (x.shape, x.stride(), x.dtype)
            assert byte_of(other) == byte_of(x) and other.untyped_storage().data_ptr() != x.data_ptr()
        assert there.device == META and moved(x, CPU) is x
        assert_same_bytes(copy, x, "copy")


def test_what_lies_between_the_elements_is_moved_too():
    wide = torch.arange(60.0).view(6, 10)
    copy = laid_out_alike(wide[1:5, 2:4], CPU)
    assert_same_bytes(copy.as_strided((32,), (1,)), wide.view(-1)[12:44].clone(), "span")


def test_a_moved_tensor_keeps_the_address_that_a_test_chose():
    for dtype, byte in ((torch.float32, 4), (torch.float16, 2), (E4M3, 3)):
        there = moved(at_byte(torch.zeros(33).to(dtype), byte), META)
        assert byte_of(there) == byte
    assert byte_of(moved(torch.zeros(7), META)) == 0


def test_far_rows_stay_far(monkeypatch):
    """Their elements alone are copied: what lies between takes no time."""
    x = far_rows(normal((5, 200), torch.float16))
    there = moved(x, META)
    assert there.stride() == x.stride() and there.untyped_storage().nbytes() > 2**32
    monkeypatch.setattr(conftest, "LARGE_SPAN", 64)
    x = normal((9, 40), torch.float32)[::2, 3:9]
    copy = laid_out_alike(x, CPU)
    assert copy.stride() == x.stride()
    assert_same_bytes(copy, x, "copy")


def test_lists_and_other_values_are_moved_as_they_are():
    sparse = torch.eye(2).to_sparse()
    got = moved([(torch.zeros(2), None), "dgelu", sparse, torch.zeros(0, 3)], META)
    assert isinstance(got[0], tuple) and got[0][0].is_meta and got[0][1] is None and got[1] == "dgelu"
    assert got[2].is_meta and got[3].shape == (0, 3)


def test_a_call_with_tensors_on_the_cpu_alone_is_no_test_of_a_gpu():
    ops = DeviceOps(torch.device("cuda"))
    x = normal((4, 6), torch.float32)
    args = fp8((4, 16), E4M3), fp8((6, 16), E4M3), scalar(1.0), scalar(1.0)
    for call in (
        lambda: ops.amax(x),
        lambda: ops.quantize(x=x, dtype=E4M3),
        lambda: ops.multi_quantize_transpose([x], E4M3),
        lambda: ops.gemm_out(*args, None, "none", None, False, False, torch.zeros(4, 6), None),
    ):
        with pytest.raises(AssertionError, match="no tensor is on cuda"):
            call()
    assert ops.amax(x.to("meta")).is_meta and ops.amax.default is torch.ops.transcast.amax.default
    assert ops.multi_quantize_transpose([], E4M3) == ([], [], [], [])
    compiled = torch.compile(lambda x: ops.amax(x), backend="eager", fullgraph=True)
    assert compiled(x) == x.abs().max(), "what torch compiles is the op itself"


def test_what_emulates_is_told_from_what_runs_on_the_backend():
    def item(names: str, **in_file: object) -> SimpleNamespace:
        return SimpleNamespace(fixturenames=names.split(), module=SimpleNamespace(**in_file))

    assert emulates(item("emu fresh")) and emulates(item("backend dtype", backend=object()))
    assert not emulates(item("backend dtype")) and not emulates(item("tmp_path"))


@pytest.mark.parametrize("shape", EXACT_SHAPES, ids=shape_id)
@pytest.mark.parametrize("epilogue", ["none", "relu", "gelu_tanh", "dgelu"])
def test_a_lost_product_is_out_of_the_bound_of_exact_sums(shape, epilogue):
    """On a GPU; with operands of any kind, the longest sums may be anything there."""
    gpu = SimpleNamespace(device=torch.device("cuda"))
    a, b, *scales = operands(shape, make=fp8_integers)
    aux = torch.linspace(-6, 6, shape[0] * shape[1]).view(shape[:2]) if epilogue == "dgelu" else None
    rest = (*scales, None, epilogue, aux, torch.float32)
    y, pre = reference.gemm_fp64(a, b, *rest)
    lost, _ = reference.gemm_fp64(a[:, 1:], b[:, 1:], *rest)
    args = (gpu, [a, b, *scales], None, epilogue, y, pre, torch.float32, None, True)
    with pytest.raises(AssertionError, match="out of bound"):
        assert_within(lost, y, bound_of(*args, exact=True)[0], "exact")
    if shape[2] > 2000:
        assert_within(lost, y, bound_of(*args)[0], "any")


def test_each_product_of_a_layer_has_the_arithmetic_of_its_device():
    cuda = torch.device("cuda")
    assert [arithmetic_on(cuda, fast) for fast in (True, False)] == ["fast_accum", "tensor_core"]
    assert arithmetic_on(CPU, True) == "fp32"
