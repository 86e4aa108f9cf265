"""The layer's arithmetic: against the reference, against its own ops, over shapes, strides and dtypes."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import transcast as tc
from layer import Results, assert_near_reference, composed, data, layer_like, run
from layouts import LAYOUTS
from transcast import FP8Linear, Tensorwise, _autograd

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
SHAPES = [(32, 48, 64), (1, 16, 16), (7, 15, 33), (17, 65, 712), (24, 8, 7), (50, 129, 40)]  # tokens, N, K
DTYPES = [(FP32, FP32), (BF16, BF16), (FP16, FP16), (BF16, FP32), (FP32, BF16)]  # of x, of the parameters


def inputs(backend, shape, x_dtype=FP32, weight_dtype=FP32, bias=True):
    tokens, n, k = shape
    where = {"device": backend.device}
    return (
        data(tokens, k, dtype=x_dtype, **where),
        data(n, k, seed=1, dtype=weight_dtype, **where) / 8,
        data(n, seed=2, dtype=weight_dtype, **where) if bias else None,
        data(tokens, n, seed=3, dtype=x_dtype, **where) * 1e-3,
    )


def check(x, weight, bias, grad, recipe=Tensorwise()):
    got = run(layer_like(weight, bias, recipe), x, grad)
    got.assert_equal(composed(x, weight, bias, grad, recipe))
    assert_near_reference(got, x, weight, bias, grad, recipe)


# --- products -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_products_match_reference(backend, shape, dtypes):
    check(*inputs(backend, shape, *dtypes))


@pytest.mark.parametrize(
    "recipe", [Tensorwise(pow2=True), Tensorwise(margin=12), Tensorwise(True, 1)], ids=str
)
def test_V7_recipe_reaches_all_casts(backend, recipe):
    x, weight, bias, grad = inputs(backend, (24, 33, 40))
    check(x, weight, bias, grad, recipe)
    default, other = (run(layer_like(weight, bias, r), x, grad) for r in (Tensorwise(), recipe))
    for name in ("y", "dx", "dweight"):
        assert not torch.equal(getattr(default, name), getattr(other, name)), name


def test_without_bias(backend):
    check(*inputs(backend, (17, 24, 40), bias=False))


@pytest.mark.parametrize("tokens", [1, 7, 17, 24, 50])
@pytest.mark.parametrize("k, n", [(712, 15), (33, 15), (33, 16), (16, 33)])
def test_S1_odd_tokens_features(backend, tokens, k, n):
    check(*inputs(backend, (tokens, n, k)))


@given(st.integers(0, 40), st.integers(1, 40), st.integers(1, 40), st.booleans())
def test_any_shape(backend, tokens, n, k, bias):
    check(*inputs(backend, (tokens, n, k), bias=bias))


@pytest.mark.parametrize("leading", [(0,), (0, 5), (5, 0), (2, 0, 3)], ids=str)
def test_S2_zero_tokens(backend, leading):
    weight, bias = data(24, 40, device=backend.device), data(24, device=backend.device)
    got = run(
        layer_like(weight, bias),
        data(*leading, 40, device=backend.device),
        data(*leading, 24, device=backend.device),
    )
    assert got.y.shape == (*leading, 24) and got.dx.shape == (*leading, 40)
    assert torch.equal(got.dweight, torch.zeros_like(weight)) and torch.equal(
        got.dbias, torch.zeros_like(bias)
    )


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_S2_zero_features(backend):
    where = {"device": backend.device}
    bias = data(24, **where)
    got = run(layer_like(data(24, 0, **where), bias), data(5, 0, **where), data(5, 24, **where))
    assert torch.equal(got.y, bias.to(BF16).to(FP32).expand(5, 24)), "K = 0: the bias alone"
    assert got.dx.shape == (5, 0) and got.dweight.shape == (24, 0)
    got = run(layer_like(data(0, 40, **where), data(0, **where)), data(5, 40, **where), data(5, 0, **where))
    assert got.y.shape == (5, 0) and got.dweight.shape == (0, 40) and got.dbias.shape == (0,)
    assert torch.equal(got.dx, torch.zeros(5, 40, **where)), "N = 0: a gradient of zeros, not of NaN"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S3_strided_equals_contiguous(backend, layout):
    x = LAYOUTS[layout](lambda shape: data(*shape, device=backend.device))
    grad = LAYOUTS[layout](lambda shape: data(*shape, seed=5, device=backend.device))
    k = x.shape[-1]
    layer = layer_like(data(k, k, seed=1, device=backend.device), data(k, seed=2, device=backend.device))
    run(layer, x, grad).assert_equal(run(layer, x.contiguous(), grad.contiguous()))


def test_S3_strided_weight_and_expanded_gradient(backend):
    x, weight, bias, _ = inputs(backend, (19, 24, 40))
    strided = torch.nn.Parameter(weight.t().contiguous().t())
    assert not strided.is_contiguous()
    layer = layer_like(weight, bias)
    ones = torch.ones(19, 24, device=backend.device)
    expected = run(layer, x, ones)
    layer.weight = strided
    run(layer, x, ones.new_ones(()).expand(19, 24)).assert_equal(expected)
    layer.zero_grad()
    leaf = x.clone().requires_grad_()
    layer(leaf).sum().backward()
    assert torch.equal(leaf.grad, expected.dx) and torch.equal(strided.grad, expected.dweight)


@pytest.mark.parametrize("leading", [(), (1,), (1, 36), (6, 6), (2, 3, 6), (1, 1, 36, 1)], ids=str)
def test_S10_leading_dims_equal_flattened(backend, leading):
    tokens = math.prod(leading)
    x, weight, bias, grad = inputs(backend, (tokens, 24, 40))
    layer = layer_like(weight, bias)
    got, flat = run(layer, x.view(*leading, 40), grad.view(*leading, 24)), run(layer, x, grad)
    assert got.y.shape == (*leading, 24) and got.y.is_contiguous() and got.dx.shape == (*leading, 40)
    Results(got.y.view(tokens, 24), got.dx.view(tokens, 40), got.dweight, got.dbias).assert_equal(flat)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["x", "weight", "grad"])
def test_V4_one_non_finite_value_shows(backend, value, where):
    tensors = dict(zip(("x", "weight", "bias", "grad"), inputs(backend, (17, 24, 40))))
    tensors[where][3, 5] = value
    layer = layer_like(tensors["weight"], tensors["bias"])
    got = run(layer, tensors["x"], tensors["grad"])
    poisoned = {"x": ("y", "dweight"), "weight": ("y", "dx"), "grad": ("dx", "dweight")}[where]
    for name in ("y", "dx", "dweight"):
        nan = getattr(got, name).isnan()
        assert nan.all() if name in poisoned else not nan.any(), name
    assert got.dbias.isfinite().all().item() == (where != "grad")


def test_zeros_give_zeros(backend):
    _, weight, _, grad = inputs(backend, (17, 24, 40))
    got = run(
        layer_like(torch.zeros_like(weight), None), torch.zeros(17, 40, device=backend.device), grad * 0
    )
    for name in ("y", "dx", "dweight"):
        assert not getattr(got, name).any(), name


# --- dtypes, autocast, recipes ------------------------------------------------------------------------------


@pytest.mark.parametrize("x_dtype", [FP32, BF16])
@pytest.mark.parametrize("weight_dtype", [FP32, BF16])
def test_L8_autocast(backend, x_dtype, weight_dtype):
    x, weight, bias, grad = inputs(backend, (17, 24, 40), x_dtype, weight_dtype)
    layer, grad = layer_like(weight, bias), grad.to(BF16)
    leaf = x.clone().requires_grad_()
    with torch.autocast(backend.device.type, BF16):
        y = layer(leaf)
    y.backward(grad)
    got = Results(y.detach(), leaf.grad, layer.weight.grad, layer.bias.grad)
    assert y.dtype == BF16 and leaf.grad.dtype == x_dtype and layer.weight.grad.dtype == weight_dtype
    got.assert_equal(composed(x, weight, bias, grad))


def test_L8_inference_mode(backend):
    x, weight, bias, grad = inputs(backend, (17, 24, 40))
    layer = layer_like(weight, bias)
    expected = composed(x, weight, bias, grad).y
    with torch.inference_mode():
        assert torch.equal(layer(x), expected)
        assert torch.equal(layer(x.clone()), expected)
        made_inside = layer_like(weight, bias)
        assert torch.equal(made_inside(x), expected)
    with torch.no_grad():
        assert torch.equal(layer(x), expected)


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_recipe_none_is_nn_linear(backend, dtype):
    x, weight, bias, grad = inputs(backend, (17, 24, 40), dtype, dtype)
    plain = torch.nn.Linear(40, 24, device=backend.device, dtype=dtype)
    plain.load_state_dict({"weight": weight, "bias": bias})
    run(layer_like(weight, bias, None), x, grad).assert_equal(run(plain, x, grad))


def test_functional_equals_layer(backend):
    x, weight, bias, grad = inputs(backend, (17, 24, 40))
    expected = run(layer_like(weight, bias, Tensorwise(pow2=True)), x, grad)
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    y = tc.linear(*leaves, Tensorwise(pow2=True))
    y.backward(grad)
    Results(y.detach(), *(leaf.grad for leaf in leaves)).assert_equal(expected)
    assert torch.equal(tc.linear(x, weight), tc.linear(x, weight, None, "tensorwise"))
    assert torch.equal(tc.linear(x, weight, bias, None), F.linear(x, weight, bias))


# --- wrong arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (3, 16), (3, 8), (9,)], ids=str)
def test_wrong_features_are_refused(backend, shape):
    layer = FP8Linear(12, 8, device=backend.device)  # 16 = ceil16(12): a GEMM alone would take it for padding
    with pytest.raises(ValueError, match=r"linear: x must have shape \(\.\.\., 12\).*got \("):
        layer(torch.zeros(shape, device=backend.device))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.float8_e4m3fn])
def test_wrong_dtypes_are_refused(backend, dtype):
    layer = FP8Linear(16, 8, device=backend.device)
    with pytest.raises(ValueError, match=str(dtype).removeprefix("torch.")):
        layer(torch.zeros(4, 16, device=backend.device).to(dtype))


def test_wrong_devices_are_refused(backend):
    x = torch.zeros(4, 16, device=backend.device)
    meta = FP8Linear(16, 8, device="meta")
    with pytest.raises(
        ValueError, match=rf"x and weight must be on one device, got {backend.device}.* and meta"
    ):
        meta(x)
    with pytest.raises(ValueError, match="must be on one device, got meta and"):
        FP8Linear(16, 8, device=backend.device)(x.to("meta"))
    layer = FP8Linear(16, 8, device=backend.device)
    layer.bias = nn.Parameter(layer.bias.detach().to("meta"))
    for grad in (torch.enable_grad(), torch.no_grad()):
        with grad, pytest.raises(
            ValueError, match=rf"bias must be on the device of x and weight, {backend.device}.*, got meta"
        ):
            layer(x)
    assert meta(x.to("meta")).shape == (4, 8), "shapes alone are fine"
    elsewhere = SimpleNamespace(device=torch.device("mps"))
    with pytest.raises(ValueError, match="x must be on a CPU or CUDA device, got mps"):
        _autograd._other_device(elsewhere)


@pytest.mark.parametrize("name", ["rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8", "delayed", "static"])
def test_missing_recipe_is_refused_by_name(name):
    message = f"recipe '{name}' is not available in this version; available: 'tensorwise', or None"
    for call in (
        lambda: FP8Linear(4, 4, recipe=name),
        lambda: tc.linear(torch.zeros(1, 4), torch.zeros(4, 4), recipe=name),
        lambda: tc.convert(torch.nn.Linear(4, 4), name),
        lambda: tc.set_recipe(FP8Linear(4, 4), name),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_wrong_recipes_are_refused():
    with pytest.raises(ValueError, match="recipe 'tensorwize' is unknown; available: 'tensorwise'"):
        FP8Linear(4, 4, recipe="tensorwize")
    with pytest.raises(TypeError, match="an instance such as"):
        FP8Linear(4, 4, recipe=Tensorwise)
    for margin in (-1, 65, 100):
        with pytest.raises(ValueError, match=f"margin must be from 0 to 64, got {margin}"):
            Tensorwise(margin=margin)
    FP8Linear(4, 4, recipe=Tensorwise(margin=64))(torch.zeros(1, 4))
    with pytest.raises(TypeError, match="margin must be an int, got 0.5"):
        Tensorwise(margin=0.5)
    with pytest.raises(TypeError, match="pow2 must be a bool, got 1"):
        Tensorwise(pow2=1)
    with pytest.raises(AttributeError):
        Tensorwise().margin = 1


def test_repr_names_the_recipe():
    assert "recipe=tensorwise)" in repr(FP8Linear(4, 4))
    assert "recipe=Tensorwise(pow2=True, margin=0)" in repr(FP8Linear(4, 4, recipe=Tensorwise(pow2=True)))
    assert "recipe=None" in repr(FP8Linear(4, 4, recipe=None))
    assert "wgrad_into=main_grad" in repr(FP8Linear(4, 4, wgrad_into="main_grad"))
