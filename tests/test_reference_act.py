"""The reference's FP32 activations against numbers worked out by hand and against FP64 mathematics."""

from __future__ import annotations

import math

import pytest
import torch

from cases import ACT_BOUNDS, all_patterns
from conftest import assert_within
from transcast import _reference_act as fp32

INF, NAN = math.inf, math.nan


def gelu_argument(x: torch.Tensor) -> torch.Tensor:
    return 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def gelu_slope(x: torch.Tensor) -> torch.Tensor:
    s, dz = torch.sigmoid(gelu_argument(x)), 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return s + x * s * (1 - s) * dz


# In FP64, for finite x.
EXACT = {
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu_tanh": lambda x: x * torch.sigmoid(gelu_argument(x)),
    "dsilu": lambda x: torch.sigmoid(x) * (1 + x * (1 - torch.sigmoid(x))),
    "dgelu_tanh": gelu_slope,
}


def ours(name: str, x: torch.Tensor) -> torch.Tensor:
    return getattr(fp32, f"{name}_f32")(x)


def finite_values() -> dict[str, torch.Tensor]:
    """Dense where the functions bend, then over their whole range, then every magnitude there is."""
    patterns = [all_patterns(dtype).flatten().to(torch.float32) for dtype in (torch.bfloat16, torch.float16)]
    sixteen_bits = torch.cat(patterns)
    return {
        "bend": torch.linspace(-20, 20, 400_001),
        "range": torch.linspace(-120, 120, 240_001),
        "16_bits": sixteen_bits[torch.isfinite(sixteen_bits) & (sixteen_bits.abs() < 1e10)],
    }


VALUES = finite_values()


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("values", VALUES)
def test_bound_against_fp64(name, values):
    x = VALUES[values]
    x64 = x.to(torch.float64)
    exact = EXACT[name](x64)
    relative, of_x, absolute = ACT_BOUNDS[name]
    assert_within(ours(name, x), exact, relative * exact.abs() + of_x * x64.abs() + absolute, name)


@pytest.mark.parametrize(
    "name, x, y",
    [
        ("exp", 0.0, 1.0), ("exp", -0.0, 1.0), ("exp", INF, INF), ("exp", -INF, 0.0), ("exp", 89.5, INF),
        ("exp", -104.0, 0.0), ("exp", -3e38, 0.0), ("exp", 1.0, 2.7182817), ("exp", -1.0, 0.36787945),
        ("sigmoid", 0.0, 0.5), ("sigmoid", INF, 1.0), ("sigmoid", -INF, 0.0), ("sigmoid", 1.0, 0.7310586),
        ("silu", 0.0, 0.0), ("silu", 1.0, 0.7310586), ("silu", -1.0, -0.26894143), ("silu", 20.0, 20.0),
        ("silu", 3e38, 3e38), ("silu", -3e38, -0.0), ("silu", INF, INF), ("silu", -INF, NAN),
        ("gelu_tanh", 0.0, 0.0), ("gelu_tanh", 1.0, 0.841192), ("gelu_tanh", -1.0, -0.15880801),
        ("gelu_tanh", 3e38, 3e38), ("gelu_tanh", -3e38, -0.0),
        ("gelu_tanh", INF, INF), ("gelu_tanh", -INF, NAN),
        ("dsilu", 0.0, 0.5), ("dsilu", 1.0, 0.92767054), ("dsilu", -1.0, 0.07232949), ("dsilu", INF, 1.0),
        ("dsilu", -INF, -0.0), ("dsilu", 3e38, 1.0),
        ("dgelu_tanh", 0.0, 0.5), ("dgelu_tanh", 1.0, 1.0829641), ("dgelu_tanh", -1.0, -0.08296409),
        ("dgelu_tanh", INF, 1.0), ("dgelu_tanh", -INF, 0.0), ("dgelu_tanh", -3e38, 0.0),
    ],
)  # fmt: skip
def test_literals(name, x, y):
    """Of functions known to seven digits; signs of zero and specials to the bit."""
    got, want = ours(name, torch.tensor([x])).item(), torch.tensor(y).item()
    assert math.copysign(1, got) == math.copysign(1, want) or math.isnan(want)
    assert math.isnan(got) == math.isnan(want)
    assert math.isnan(want) or got == want or abs(got - want) <= 2.0**-23 * abs(want) * 2


@pytest.mark.parametrize("name", EXACT)
def test_nan_stays_nan(name):
    bits = torch.tensor([0x7FC00000, 0x7F800001, -1, -0x400000], dtype=torch.int32)
    assert torch.isnan(ours(name, bits.view(torch.float32))).all()


def test_powers_of_two_reach_the_ends_of_the_range():
    exponents = torch.tensor([-126, 0, 127], dtype=torch.int32)
    assert fp32._power_of_two(exponents).tolist() == [2.0**-126, 1.0, 2.0**127]
    assert fp32.exp_f32(torch.tensor([88.72])).item() == pytest.approx(math.exp(88.72), rel=1e-5)
    assert 0 < fp32.exp_f32(torch.tensor([-103.0])).item() < 2.0**-147  # a subnormal


def test_swiglu_halves_and_operands():
    gate, up, g = torch.tensor([[1.0, -1.0]]), torch.tensor([[3.0, 5.0]]), torch.tensor([[2.0, 7.0]])
    both = torch.cat([gate, up], dim=-1)
    value = fp32.act(both, "swiglu", None)
    assert torch.equal(value, fp32.silu_f32(gate) * up) and torch.equal(value, fp32.act(gate, "swiglu", up))
    gradient = fp32.dact(g, both, "swiglu", None)
    assert torch.equal(gradient, fp32.dact(g, gate, "swiglu", up))
    assert torch.equal(gradient[:, :2], g * fp32.dsilu_f32(gate) * up)
    assert torch.equal(gradient[:, 2:], g * fp32.silu_f32(gate))


@pytest.mark.parametrize("act", ["gelu_tanh", "silu", "swiglu"])
def test_gradients_are_those_of_torch(act):
    """To FP32 accuracy, through autograd: the factors sit where they belong."""
    torch.manual_seed(0)
    x, g = torch.randn(50, 40), torch.randn(50, 20 if act == "swiglu" else 40)
    leaf = x.double().requires_grad_()
    gate, up = leaf.chunk(2, dim=-1)
    value = {
        "gelu_tanh": lambda: torch.nn.functional.gelu(leaf, approximate="tanh"),
        "silu": lambda: torch.nn.functional.silu(leaf),
        "swiglu": lambda: torch.nn.functional.silu(gate) * up,
    }[act]()
    value.backward(g.double())
    torch.testing.assert_close(fp32.act(x, act, None).double(), value.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fp32.dact(g, x, act, None).double(), leaf.grad, rtol=1e-5, atol=1e-5)
