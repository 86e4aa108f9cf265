"""The reference's activations and GEMMs against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from cases import E4M3, E5M2, scalar
from transcast import reference

INF, NAN = math.inf, math.nan


def bits_of(x: torch.Tensor) -> int:
    return x.view(torch.int32).item() & 0xFFFFFFFF


def gelu(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("x", [-10.0, -3.0, -1.0, -0.1, 0.0, 0.5, 1.0, 2.75, 8.0])
def test_gelu_tanh_and_its_slope(x):
    t = torch.tensor(x, dtype=torch.float64)
    assert reference.gelu_tanh(t).item() == pytest.approx(gelu(x), rel=1e-14, abs=1e-300)
    h = 1e-6
    slope = (gelu(x + h) - gelu(x - h)) / (2 * h)
    assert reference.gelu_tanh_grad(t).item() == pytest.approx(slope, abs=1e-8)


def test_gelu_tanh_known_values():
    got = reference.gelu_tanh(torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64))
    assert got.tolist() == pytest.approx([0.84119199060828, -0.15880800939172, 1.95459769408778], abs=1e-13)


def matrix(rows: list[list[float]], fmt: torch.dtype = E4M3) -> torch.Tensor:
    return torch.tensor(rows).to(fmt)


def test_gemm_literals():
    a, b = matrix([[1, 2], [3, -4]]), matrix([[1, 1], [0.5, 2], [0, -1]], E5M2)
    half, two = scalar(0.5), scalar(2.0)
    args = (a, b, half, two)
    bias = torch.tensor([0.0, 100.0, 1.00390625])  # the last lies halfway between BF16's 1 and 1.0078125: 1
    got = reference.gemm(*args, None, "none", None, torch.float32, False)
    assert got.tolist() == [[3.0, 4.5, -2.0], [-1.0, -6.5, 4.0]]
    got = reference.gemm(*args, bias, "relu", None, torch.float32, False)
    assert got.tolist() == [[3.0, 104.5, 0.0], [0.0, 93.5, 5.0]]
    got = reference.gemm(*args, bias.half(), "none", None, torch.float16, False)
    assert got[0, 2].item() == -0.99609375  # FP16 keeps the bias
    out, aux = torch.full((2, 3), 10.0), torch.zeros(2, 3)
    reference.gemm_out(*args, None, "none", None, False, True, out, None)
    assert out.tolist() == [[13.0, 14.5, 8.0], [9.0, 3.5, 14.0]]
    reference.gemm_out(*args, None, "gelu_tanh", None, False, False, out, aux)
    assert aux.tolist() == [[3.0, 4.5, -2.0], [-1.0, -6.5, 4.0]]
    assert out[1, 0].item() == pytest.approx(gelu(-1.0), rel=1e-7)
    got = reference.gemm(*args, None, "dgelu", torch.zeros(2, 3), torch.float32, False)
    assert got.tolist() == [[1.5, 2.25, -1.0], [-0.5, -3.25, 2.0]]  # the slope at 0 is 1/2


def test_gemm_ignores_the_padding_of_a_transposed_operand():
    a, b = matrix([[1, 2, 3]]), torch.zeros(1, 16)
    b[0] = 5.0
    got = reference.gemm(a, b.to(E4M3), scalar(1.0), scalar(1.0), None, "none", None, torch.float32, False)
    assert got.tolist() == [[30.0]]


def test_V8_gemm_fp8_out_scale_counts():
    a, b, one = matrix([[1, 2], [300, 4]]), matrix([[1, 1], [4, 2]]), scalar(1.0)
    q, scale_inv, amax = reference.gemm_fp8(a, b, one, one, scalar(0.5), None, "none", E4M3, False, None)
    assert (q.to(torch.float32).tolist(), scale_inv.item()) == ([[1.5, 4.0], [144.0, 448.0]], 2.0)
    assert amax.item() == 1160.0  # 300 is 288 in e4m3: 288 * 4 + 4 * 2
    q, scale_inv, _ = reference.gemm_fp8(a, b, one, one, one, None, "none", E4M3, False, None)
    assert (q.to(torch.float32)[0].tolist(), scale_inv.item()) == ([3.0, 8.0], 1.0)


def test_V4_a_non_finite_operand_shows():
    a, b = matrix([[1, NAN], [1, 2]]), matrix([[1, 1]])
    got = reference.gemm(a, b, scalar(1.0), scalar(1.0), None, "relu", None, torch.bfloat16, False)
    assert math.isnan(got[0, 0]) and got[1, 0].item() == 3.0
    one = scalar(1.0)
    _, scale_inv, amax = reference.gemm_fp8(a, b, one, one, one, None, "none", E4M3, False, None)
    assert bits_of(scale_inv) == bits_of(amax) == 0x7FC00000
    _, scale_inv = reference.quantize(torch.tensor([1.0, INF]), E4M3)
    assert bits_of(scale_inv) == 0x7FC00000
