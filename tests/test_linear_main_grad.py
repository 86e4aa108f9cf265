"""``wgrad_into="main_grad"``: weight gradients that a trainer's own buffer collects."""

from __future__ import annotations

import pytest
import torch

import transcast as tc
from bounds import gemm_bound
from cases import E4M3, E5M2, scalar
from conftest import assert_within
from gemm_checks import arithmetic_on
from layer import OpCalls, composed, data, layer_like, run
from transcast import FP8Linear, reference

FP32, BF16 = torch.float32, torch.bfloat16


def make(backend, dtype=FP32, recipe="tensorwise"):
    where = {"device": backend.device, "dtype": dtype}
    plain = layer_like(data(24, 40, seed=1, **where), data(24, seed=2, **where))
    layer = FP8Linear.from_linear(plain.to_linear(), recipe, wgrad_into="main_grad")
    return layer, data(17, 40, **where), data(17, 24, seed=3, **where)


def listening(layer: FP8Linear, main_grad: torch.Tensor) -> FP8Linear:
    """The weight as Megatron prepares it."""
    layer.weight.main_grad = main_grad
    layer.weight.grad_added_to_main_grad = False
    return layer


def wgrad_operands(x: torch.Tensor, grad: torch.Tensor, recipe: str | None = "tensorwise") -> tuple:
    """What the product g^T . x is made of: FP8 and inverse scales, or the tensors themselves."""
    x, grad = x.detach().cpu(), grad.cpu()
    if recipe is None:
        return grad.t(), x.t(), scalar(1.0), scalar(1.0)
    _, _, x_t, x_scale_inv = reference.quantize_transpose(x, E4M3)
    _, _, g_t, g_scale_inv = reference.quantize_transpose(grad, E5M2)
    return g_t, x_t, g_scale_inv, x_scale_inv


def assert_added(main_grad: torch.Tensor, start: torch.Tensor, *products: tuple) -> None:
    """``main_grad`` is ``start`` and the products, added one by one, each within the bound of a GEMM.

    That bound holds for a product of FP32 tensors too, whose one rounding per element takes the place of
    those of the scales.
    """
    exact = start.cpu().to(torch.float64)
    error = torch.zeros_like(exact)
    for operands in products:
        is_fp8 = operands[0].dtype.itemsize == 1
        arithmetic = arithmetic_on(main_grad.device) if is_fp8 else "fp32"
        pre, _ = reference.gemm_fp64(*operands, None, "none", None, main_grad.dtype)
        held = exact.abs() + error  # what this product may have been added to
        exact = exact + pre
        largest = exact.abs() + error
        bound = gemm_bound(*operands, None, "none", largest, pre, main_grad.dtype, held, arithmetic)[0]
        error = error + bound
    assert_within(main_grad.cpu(), exact, error, "main_grad")


@pytest.mark.parametrize("main_dtype", [FP32, BF16])
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_gradient_is_added(backend, dtype, main_dtype):
    layer, x, grad = make(backend, dtype)
    start = data(24, 40, seed=4, device=backend.device, dtype=main_dtype)
    layer.weight.main_grad = start.clone()
    expected = composed(x, layer.weight.detach(), layer.bias.detach(), grad)
    got = run(layer, x, grad)
    assert got.dweight is None and layer.weight.grad_added_to_main_grad is True
    assert (
        torch.equal(got.y, expected.y)
        and torch.equal(got.dx, expected.dx)
        and torch.equal(got.dbias, expected.dbias)
    )
    assert_added(layer.weight.main_grad, start, wgrad_operands(x, grad))


def test_L3_layer_called_twice_adds_up(backend):
    layer, x, grad = make(backend)
    start = torch.zeros(24, 40, device=backend.device)
    layer.weight.main_grad = start.clone()
    other = data(9, 40, seed=7, device=backend.device)
    (layer(x).sum() + (layer(other) * 2).sum()).backward()
    ones = torch.ones(17, 24, device=backend.device)
    # The backward takes the last call first.
    products = [wgrad_operands(other, ones[:9] * 2), wgrad_operands(x, ones)]
    assert_added(layer.weight.main_grad, start, *products)
    run(layer, x, grad)
    assert_added(layer.weight.main_grad, start, *products, wgrad_operands(x, grad))
    assert layer.weight.grad is None


def test_L3_missing_main_grad_is_refused_before_anything_runs(backend):
    layer, x, grad = make(backend)
    y = layer(x.requires_grad_())
    with (
        OpCalls() as ops,
        pytest.raises(RuntimeError, match=r"the weight has no main_grad.*\(24, 40\).*FSDP2"),
    ):
        y.backward(grad)
    assert not ops.calls and x.grad is None and not hasattr(layer.weight, "grad_added_to_main_grad")


WRONG_MAIN_GRADS = [
    (torch.zeros(24, 40, dtype=torch.float16), r"torch\.float16 of shape \(24, 40\) on"),
    (torch.zeros(24, 40, dtype=torch.float64), r"torch\.float64 of shape \(24, 40\) on"),
    (torch.zeros(40, 24), r"torch\.float32 of shape \(40, 24\) on"),
    (torch.zeros(24 * 40), r"torch\.float32 of shape \(960,\) on"),
    (torch.zeros(24, 40, device="meta"), r"torch\.float32 of shape \(24, 40\) on meta"),
]


@pytest.mark.parametrize("recipe", ["tensorwise", None])
@pytest.mark.parametrize(
    "main_grad, got", WRONG_MAIN_GRADS, ids=["fp16", "fp64", "transposed", "flat", "device"]
)
def test_L3_wrong_main_grad_is_refused_before_anything_runs(backend, recipe, main_grad, got):
    layer, x, grad = make(backend, recipe=recipe)
    layer.weight.main_grad = main_grad if main_grad.is_meta else main_grad.to(backend.device)
    y = layer(x.requires_grad_())
    expected = rf"main_grad must be an FP32 or BF16 tensor of shape \(24, 40\) on {backend.device}"
    with OpCalls() as ops, pytest.raises(ValueError, match=f"{expected}.*, got {got}"):
        y.backward(grad)
    assert not ops.calls and not hasattr(layer.weight, "grad_added_to_main_grad")
    assert main_grad.is_meta or not layer.weight.main_grad.any()


@pytest.mark.parametrize("recipe", ["tensorwise", None])
@pytest.mark.parametrize("zero_out", [True, False])
def test_L12_hooks_fire_with_a_stand_in_gradient(backend, recipe, zero_out):
    layer, x, grad = make(backend, recipe=recipe)
    layer = listening(layer, torch.zeros(24, 40, device=backend.device))
    if zero_out:
        layer.weight.zero_out_wgrad = True
    fired = []
    layer.weight.register_post_accumulate_grad_hook(
        lambda weight: fired.append(weight.grad_added_to_main_grad)
    )
    for step in (1, 2):
        layer.weight.grad_added_to_main_grad = False
        got = run(layer, x, grad)
        assert fired == [True] * step
        assert got.dweight.shape == (24, 40) and got.dweight.dtype == FP32
        assert not zero_out or not got.dweight.any()
    assert_added(layer.weight.main_grad, torch.zeros(24, 40), *[wgrad_operands(x, grad, recipe)] * 2)


def test_L12_nobody_listens_no_stand_in(backend):
    layer, x, grad = make(backend)
    layer.weight.main_grad = torch.zeros(24, 40, device=backend.device)
    for _ in range(3):
        assert run(layer, x, grad).dweight is None
        assert layer.weight.grad_added_to_main_grad is True


def test_frozen_weight_needs_no_main_grad(backend):
    layer, x, grad = make(backend)
    layer.weight.requires_grad_(False)
    with OpCalls() as ops:
        assert run(layer, x, grad).dweight is None
    assert "gemm_out" not in ops.calls


@pytest.mark.parametrize("recipe", ["tensorwise", None])
def test_only_added_where_the_weights_gradient_is_asked_for(backend, recipe):
    layer, x, grad = make(backend, recipe=recipe)
    start = torch.ones(24, 40, device=backend.device)
    layer.weight.main_grad = start.clone()
    x.requires_grad_()
    want = run(layer, x, grad).dx
    added = layer.weight.main_grad.clone()
    layer.weight.main_grad.copy_(start)
    del layer.weight.grad_added_to_main_grad
    with OpCalls() as ops:
        (dx,) = torch.autograd.grad(layer(x), x, grad)
    assert torch.equal(dx, want) and torch.equal(layer.weight.main_grad, start)
    assert "gemm_out" not in ops.calls and not hasattr(layer.weight, "grad_added_to_main_grad")
    layer(x).backward(grad, inputs=[x])
    assert torch.equal(layer.weight.main_grad, start)
    for ask in (
        lambda y: y.backward(grad, inputs=[layer.weight]),
        lambda y: torch.autograd.grad(y, layer.weight, grad, allow_unused=True),
    ):
        layer.weight.main_grad.copy_(start)
        ask(layer(x))
        assert torch.equal(layer.weight.main_grad, added)


@pytest.mark.parametrize("recipe", ["tensorwise", None])
def test_autograd_sees_that_main_grad_was_written(backend, recipe):
    layer, x, grad = make(backend, recipe=recipe)
    layer.weight.main_grad = torch.ones(24, 40, device=backend.device)
    factor = torch.ones((), device=backend.device, requires_grad=True)
    kept = factor * layer.weight.main_grad
    run(layer, x, grad)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()


def test_recipe_none_adds_to_main_grad_too(backend):
    layer, x, grad = make(backend, recipe=None)
    layer.weight.main_grad = torch.ones(24, 40, device=backend.device)
    got = run(layer, x, grad)
    assert got.dweight is None and layer.weight.grad_added_to_main_grad is True
    assert_added(layer.weight.main_grad, torch.ones(24, 40), wgrad_operands(x, grad, None))
    del layer.weight.main_grad
    with pytest.raises(RuntimeError, match="the weight has no main_grad"):
        run(layer, x, grad)


def test_functional_form(backend):
    layer, x, grad = make(backend)
    layer.weight.main_grad = torch.zeros(24, 40, device=backend.device)
    run(layer, x, grad)
    weight = torch.nn.Parameter(layer.weight.detach().clone())
    weight.main_grad = torch.zeros(24, 40, device=backend.device)
    tc.linear(x, weight, wgrad_into="main_grad").backward(grad)
    assert torch.equal(weight.main_grad, layer.weight.main_grad)


def test_other_targets_are_refused():
    for call in (
        lambda: FP8Linear(4, 4, wgrad_into="grad"),
        lambda: FP8Linear.from_linear(torch.nn.Linear(4, 4), wgrad_into=True),
        lambda: tc.linear(torch.zeros(1, 4), torch.zeros(4, 4), wgrad_into="main"),
    ):
        with pytest.raises(ValueError, match="wgrad_into must be None or 'main_grad', got"):
            call()
