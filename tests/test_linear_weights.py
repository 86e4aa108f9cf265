"""State dicts, and layers whose weight itself is FP8."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

import transcast as tc
from cases import E4M3
from conftest import assert_same_bytes
from layer import OpCalls, data, layer_like, quantized_like, run, same_weight, saved_and_loaded
from transcast import FP8Linear, Tensorwise, reference

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


def make(backend, dtype=FP32, bias=True, recipe="tensorwise"):
    where = {"device": backend.device, "dtype": dtype}
    layer = layer_like(data(24, 40, seed=1, **where), data(24, seed=2, **where) if bias else None, recipe)
    return layer, data(17, 40, **where), data(17, 24, seed=3, **where)


# --- high-precision dicts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
def test_L7_nn_linear_dicts_load_strictly_both_ways(backend, bias):
    plain = nn.Linear(40, 24, bias, device=backend.device)
    layer = FP8Linear(40, 24, bias, device=backend.device)
    assert list(layer.state_dict()) == list(plain.state_dict())
    for source, target in ((plain, layer), (layer, nn.Linear(40, 24, bias, device=backend.device))):
        target.load_state_dict(saved_and_loaded(source.state_dict()), strict=True)
        assert torch.equal(target.weight, source.weight)
        assert not bias or torch.equal(target.bias, source.bias)


def test_L7_checkpoints_do_not_grow(backend):
    def size(model: nn.Module) -> int:
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        return len(file.getvalue())

    layer, x, grad = make(backend)
    before, plain = size(layer), size(layer.to_linear())
    with tc.cached_weights(layer):
        for _ in range(3):
            run(layer, x, grad)
        assert size(layer) == before == plain


# --- FP8 weights --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("recipe", [Tensorwise(), Tensorwise(pow2=True)], ids=str)
def test_quantized_layer_computes_the_same(backend, dtype, recipe):
    layer, x, grad = make(backend, dtype, recipe=recipe)
    want = run(layer, x, grad)
    q, scale_inv = reference.quantize(layer.weight.detach(), E4M3, recipe.pow2, recipe.margin)
    assert tc.quantize_weights_(layer) is layer
    assert_same_bytes(layer.weight, q, "weight")
    assert_same_bytes(layer.weight_scale_inv, scale_inv, "weight_scale_inv")
    assert isinstance(layer.weight, nn.Parameter) and not layer.weight.requires_grad
    got = run(layer, x, grad)
    assert torch.equal(got.y, want.y) and torch.equal(got.dx, want.dx) and got.dweight is None
    assert "weight=float8_e4m3fn" in repr(layer)
    with torch.inference_mode():
        assert torch.equal(layer(x), want.y)


def test_quantize_weights_is_idempotent_and_keeps_ties(backend):
    first, x, _ = make(backend)
    second, other = copy.deepcopy(first), copy.deepcopy(first)
    second.weight = first.weight
    other.recipe = None
    model = nn.ModuleList([first, second, other, first])
    tc.quantize_weights_(model)
    assert first.weight is second.weight and first.weight.dtype == E4M3 and other.weight.dtype == FP32
    weight, scale_inv = first.weight, first.weight_scale_inv
    tc.quantize_weights_(model)
    assert first.weight is weight and first.weight_scale_inv is scale_inv


def test_ties_outlive_a_move(backend):
    first, _, _ = make(backend)
    second = copy.deepcopy(first)
    second.weight = first.weight
    model = tc.quantize_weights_(nn.ModuleList([first, second]))
    model._apply(torch.clone)  # What a move to another device does.
    assert first.weight is second.weight and first.weight_scale_inv is second.weight_scale_inv
    first.load_state_dict({"weight": data(24, 40, seed=9), "bias": data(24)})
    same_weight(first, second)


def test_quantize_weights_changes_all_layers_or_none(backend):
    model = nn.Sequential(make(backend)[0], make(backend)[0].double())
    with pytest.raises(ValueError, match=r"quantize_weights_: 1: the weight must be .* got torch\.float64"):
        tc.quantize_weights_(model)
    assert [layer.weight.dtype for layer in model] == [FP32, torch.float64]


def test_training_an_fp8_weight_is_refused(backend):
    layer, x, _ = make(backend)
    tc.quantize_weights_(layer).requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"FP8 \(quantize_weights_\) and cannot be trained"):
        layer(x)
    with torch.no_grad():
        layer(x)


def test_weight_converted_to_fp8_without_a_scale_is_refused(backend):
    layer, x, _ = make(backend)
    with pytest.raises(ValueError, match=r"torch\.float8_e4m3fn without a scale.*quantize_weights_"):
        layer.to(E4M3)(x)


def test_L9_quantized_weight_costs_one_byte(backend):
    layer, x, _ = make(backend)
    tc.quantize_weights_(layer)
    assert sum(t.nbytes for t in layer.state_dict().values()) == 24 * 40 + 24 * 4 + 4
    with OpCalls() as ops:
        layer(x)
    assert ops.calls == {"quantize": 1, "gemm": 1}, "only the input is cast"


CONVERSIONS = {
    "half": (lambda m: m.half(), FP16),
    "bfloat16": (lambda m: m.bfloat16(), BF16),
    "to(bfloat16)": (lambda m: m.to(BF16), BF16),
    "to(device, dtype)": (lambda m: m.to(next(m.buffers()).device, BF16), BF16),
    "double": (lambda m: m.double(), torch.float64),
    "float": (lambda m: m.float(), FP32),
    "type": (lambda m: m.type(BF16), BF16),
    "share_memory": (lambda m: m.share_memory(), FP32),
}


@pytest.mark.parametrize("name", CONVERSIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_L13_conversions_leave_fp8_alone(backend, name, bias):
    convert, dtype = CONVERSIONS[name]
    layer, x, _ = make(backend, bias=bias)
    tc.quantize_weights_(layer)
    before = copy.deepcopy(layer)
    model = convert(nn.Sequential(layer, nn.Linear(3, 3)))
    same_weight(layer, before)
    assert model[1].weight.dtype == dtype and (not bias or layer.bias.dtype == dtype)
    assert layer.to_linear().weight.dtype == dtype
    assert not layer.weight.requires_grad and layer.weight_scale_inv.dtype == FP32


def test_L13_devices_still_move(backend):
    layer = quantized_like(make(backend)[0]).to("meta", BF16)
    assert layer.weight.is_meta and layer.weight.dtype == E4M3
    assert layer.weight_scale_inv.is_meta and layer.weight_scale_inv.dtype == FP32
    assert layer.bias.is_meta and layer.bias.dtype == BF16
    empty = layer.to_empty(device=backend.device)
    assert empty.weight.device == backend.device and empty.weight.dtype == E4M3


def test_L13_unquantized_layer_converts_as_nn_linear(backend):
    layer, x, _ = make(backend)
    assert layer.to(BF16).weight.dtype == BF16
    assert layer(x.to(BF16)).dtype == BF16


def test_to_linear_dequantizes(backend):
    layer, _, _ = make(backend, BF16)
    tc.quantize_weights_(layer)
    plain = layer.to_linear()
    assert type(plain) is nn.Linear and list(plain.state_dict()) == ["weight", "bias"]
    assert plain.weight.dtype == BF16 and not plain.weight.requires_grad and plain.bias is layer.bias
    assert torch.equal(plain.weight, reference.dequantize(layer.weight, layer.weight_scale_inv, BF16))
    assert layer.weight.dtype == E4M3, "the layer itself is as before"


# --- recipes ------------------------------------------------------------------------------------------------


def test_quantized_layer_cannot_go_to_high_precision(backend):
    model = nn.ModuleDict({"a": make(backend)[0], "b": make(backend)[0]})
    tc.quantize_weights_(model["b"])
    with pytest.raises(ValueError, match="has dropped the high-precision weights of b"):
        tc.set_recipe(model, None)
    assert model["a"].recipe == Tensorwise(), "nothing is switched"
    with pytest.raises(ValueError, match="needs the high-precision weight"):
        model["b"].recipe = None
    tc.set_recipe(model, None, filter_fn=lambda module, fqn: fqn == "a")
    assert model["a"].recipe is None and model["b"].recipe == Tensorwise()


def test_weight_that_is_no_parameter_is_refused(backend):
    layer = FP8Linear(40, 24, device=backend.device)
    with pytest.warns(FutureWarning):
        nn.utils.weight_norm(layer)
    layer(data(3, 40, device=backend.device)).sum().backward()
    assert layer.weight_v.grad is not None
    with pytest.raises(ValueError, match="up: the weight is no parameter"):
        tc.quantize_weights_(nn.ModuleDict({"up": layer}))
