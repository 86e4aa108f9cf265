"""The bounds of tensor cores hold for the arithmetic that they are derived from, and are not held by less."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bounds import INSTRUCTION_K, PROMOTION, accumulation_error
from cases import E4M3, fp8


def cut_off(terms: Tensor) -> Tensor:
    """The sum of terms [N, n], each first cut off below 2^-13 of the power of two in the largest of its row."""
    _, exponent = torch.frexp(terms.abs().amax(dim=1, keepdim=True))
    unit = 2.0 ** (exponent.to(torch.float64) - 1 - 13)
    return (torch.trunc(terms / unit) * unit).sum(dim=1)


def tensor_core(products: Tensor, promote: bool) -> Tensor:
    """Sums of products [N, K], FP64: K in pieces of one instruction, an FP32 sum every few of them."""
    total = torch.zeros(products.shape[0])
    partial = torch.zeros(products.shape[0], dtype=torch.float64)
    for i, piece in enumerate(products.split(INSTRUCTION_K, dim=1)):
        partial = cut_off(torch.cat((partial.unsqueeze(1), piece), dim=1))
        if promote and i % PROMOTION == PROMOTION - 1:
            total, partial = total + partial.to(torch.float32), torch.zeros_like(partial)
    return (total + partial.to(torch.float32)).to(torch.float64)


@pytest.mark.parametrize("k", [1, 32, 33, 128, 129, 4096])
@pytest.mark.parametrize("arithmetic", ["tensor_core", "fast_accum"])
def test_a_tensor_core_stays_within_its_bound(arithmetic, k):
    a, b = (fp8((300, k), E4M3, seed).to(torch.float64) for seed in (1, 2))
    for products in (a * b, (a * b).abs(), torch.full((1, k), 1.875**2, dtype=torch.float64)):
        error = (tensor_core(products, arithmetic == "tensor_core") - products.sum(dim=1)).abs()
        relative = error / products.abs().sum(dim=1).clamp(min=2.0**-60)
        assert relative.max() <= accumulation_error(k, arithmetic)
    if k == 4096:
        assert relative.max() > accumulation_error(k)  # more than FP32 loses: the bound is needed


def test_literals_of_the_bounds():
    unit = 33 * 2.0**-13
    assert accumulation_error(1) == 2.0**-24 / (1 - 2.0**-24)
    for k, arithmetic, instructions in [(32, "tensor_core", 1), (8192, "tensor_core", 4), (8192, "fast_accum", 256)]:
        want = (1 + unit) ** instructions - 1 + k * 2.0**-24 / (1 - k * 2.0**-24)
        assert accumulation_error(k, arithmetic) == pytest.approx(want, rel=1e-12)
