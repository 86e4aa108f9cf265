"""``wgrad_into="main_grad"``: weight gradients that a trainer's own buffer collects."""

from __future__ import annotations

import pytest
import torch

import transcast as tc
from layer import OpCalls, composed, data, layer_like, run
from transcast import FP8Linear

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
    added = layer.weight.main_grad.to(FP32) - start.to(FP32)
    tolerance = {"rtol": 0.02, "atol": 0.1} if BF16 in (dtype, main_dtype) else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(added, expected.dweight.to(FP32), **tolerance)


def test_L3_layer_called_twice_adds_up(backend):
    layer, x, grad = make(backend)
    layer.weight.main_grad = torch.zeros(24, 40, device=backend.device)
    other = data(9, 40, seed=7, device=backend.device)
    (layer(x).sum() + (layer(other) * 2).sum()).backward()
    ones = torch.ones(17, 24, device=backend.device)
    parts = [
        composed(x, layer.weight.detach(), None, ones),
        composed(other, layer.weight.detach(), None, ones[:9] * 2),
    ]
    torch.testing.assert_close(layer.weight.main_grad, parts[0].dweight + parts[1].dweight)
    run(layer, x, grad)
    parts.append(composed(x, layer.weight.detach(), None, grad))
    torch.testing.assert_close(
        layer.weight.main_grad, sum(part.dweight for part in parts), rtol=1e-4, atol=1e-4
    )
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
    exact = 2 * grad.double().T @ x.double()
    assert (layer.weight.main_grad - exact).norm() < 0.1 * exact.norm()


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


def test_recipe_none_adds_to_main_grad_too(backend):
    layer, x, grad = make(backend, recipe=None)
    layer.weight.main_grad = torch.ones(24, 40, device=backend.device)
    got = run(layer, x, grad)
    assert got.dweight is None and layer.weight.grad_added_to_main_grad is True
    torch.testing.assert_close(layer.weight.main_grad, 1 + grad.T @ x)
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
