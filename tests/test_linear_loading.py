"""State dicts with FP8 weights, and what loads into layers that have or do not have them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import transcast as tc
from cases import E4M3, E5M2
from conftest import assert_same_bytes
from layer import data, layer_like, quantized_like, run, same_weight, saved_and_loaded
from transcast import FP8Linear, reference

FP32, BF16 = torch.float32, torch.bfloat16


def make(backend, dtype=FP32, bias=True, recipe="tensorwise"):
    where = {"device": backend.device, "dtype": dtype}
    layer = layer_like(data(24, 40, seed=1, **where), data(24, seed=2, **where) if bias else None, recipe)
    return layer, data(17, 40, **where), data(17, 24, seed=3, **where)


@pytest.mark.parametrize("assign", [True, False])
@pytest.mark.parametrize("dtype", [FP32, BF16, torch.float64])
def test_high_precision_dict_is_quantized_on_load(backend, dtype, assign):
    layer, _, _ = make(backend)
    source = nn.Linear(40, 24, device=backend.device, dtype=dtype)
    tc.quantize_weights_(layer)
    layer.load_state_dict(source.state_dict(), strict=True, assign=assign)
    q, scale_inv = reference.quantize(
        source.weight.detach().to(FP32 if dtype == torch.float64 else dtype), E4M3
    )
    assert_same_bytes(layer.weight, q, "weight")
    assert_same_bytes(layer.weight_scale_inv, scale_inv, "weight_scale_inv")
    assert isinstance(layer.weight, nn.Parameter) and not layer.weight.requires_grad
    assert torch.equal(layer.bias, source.bias.to(layer.bias.dtype))


@pytest.mark.parametrize("assign", [True, False])
def test_L7_quantized_dict_loads_strictly(backend, assign):
    source, x, grad = make(backend)
    tc.quantize_weights_(source)
    target = quantized_like(FP8Linear(40, 24, device=backend.device))
    target.load_state_dict(saved_and_loaded(source.state_dict()), strict=True, assign=assign)
    same_weight(target, source)
    run(target, x, grad).assert_equal(run(source, x, grad))


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_quantized_dict_is_dequantized_for_an_unquantized_layer(backend, dtype):
    source, _, _ = make(backend)
    tc.quantize_weights_(source)
    state = source.state_dict()
    model = nn.Sequential(FP8Linear(40, 24, device=backend.device, dtype=dtype))
    model.load_state_dict({f"0.{key}": value for key, value in state.items()}, strict=True)
    assert torch.equal(model[0].weight, reference.dequantize(source.weight, source.weight_scale_inv, dtype))
    assert model[0].weight.requires_grad and list(state) == ["weight", "bias", "weight_scale_inv"]


@pytest.mark.parametrize("quantized", [True, False])
def test_loading_does_not_change_the_dict(backend, quantized):
    source, target = make(backend)[0], make(backend)[0]
    tc.quantize_weights_(source if not quantized else target)
    state = dict(source.state_dict())
    before = dict(state)
    target._load_from_state_dict(state, "", {}, True, [], [], [])
    assert state.keys() == before.keys() and all(state[key] is before[key] for key in before)


def without(state: dict, key: str) -> dict:
    return {k: v for k, v in state.items() if k != key}


WRONG_DICTS = {
    "no scale": (
        lambda s: without(s, "weight_scale_inv"),
        "float8_e4m3fn weight comes without weight_scale_inv",
    ),
    "no weight": (lambda s: without(s, "weight"), "weight_scale_inv comes without a weight"),
    "raw bytes": (
        lambda s: without(s, "weight_scale_inv") | {"weight": s["weight"].view(torch.uint8)},
        "uint8 weight",
    ),
    "e5m2": (
        lambda s: s | {"weight": s["weight"].view(E5M2)},
        "float8_e5m2 weight, expected torch.float8_e4m3fn",
    ),
    "scaled fp32": (
        lambda s: s | {"weight": torch.zeros(24, 40)},
        "float32 weight, expected torch.float8_e4m3fn",
    ),
    "block scales": (
        lambda s: s | {"weight_scale_inv": torch.ones(1, 2)},
        r"one element, got shape \(1, 2\)",
    ),
}


@pytest.mark.parametrize("name", WRONG_DICTS)
@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("strict", [True, False])
def test_wrong_dicts_are_refused(backend, name, quantized, strict):
    layer, _, _ = make(backend)
    spoil, message = WRONG_DICTS[name]
    state = spoil(quantized_like(layer).state_dict())
    target = quantized_like(layer) if quantized else layer
    before = copy.deepcopy(target.state_dict())
    with pytest.raises(RuntimeError, match=message):
        target.load_state_dict(state, strict=strict)
    for key, value in target.state_dict().items():
        assert_same_bytes(value, before[key], key)


def test_wrong_shapes_are_refused_as_by_torch(backend):
    layer = quantized_like(make(backend)[0])
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        layer.load_state_dict(nn.Linear(40, 25, device=backend.device).state_dict())
    with pytest.raises(RuntimeError, match="Unexpected key.*extra"):
        layer.load_state_dict(layer.state_dict() | {"extra": torch.zeros(1)})
    with pytest.raises(RuntimeError, match="Missing key.*weight"):
        layer.load_state_dict({"bias": layer.bias})
