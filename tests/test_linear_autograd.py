"""What the layer answers to less usual questions of autograd."""

from __future__ import annotations

import pytest
import torch

import transcast as tc
from layer import OpCalls, composed, data, layer_like, run


def make(backend, shape=(17, 24, 40)):
    tokens, n, k = shape
    where = {"device": backend.device}
    layer = layer_like(data(n, k, seed=1, **where), data(n, seed=2, **where))
    return layer, data(tokens, k, **where), data(tokens, n, seed=3, **where)


def test_autograd_grad_of_the_weight_alone(backend):
    layer, x, grad = make(backend)
    expected = composed(x, layer.weight.detach(), layer.bias.detach(), grad)
    (dweight,) = torch.autograd.grad(layer(x.requires_grad_()), layer.weight, grad)
    assert torch.equal(dweight, expected.dweight) and layer.weight.grad is None


def test_second_derivative_is_refused(backend):
    layer, x, _ = make(backend)
    (dx,) = torch.autograd.grad(layer(x.requires_grad_()).sum(), x, create_graph=True)
    expected = run(layer, x, torch.ones(17, 24, device=backend.device)).dx
    assert torch.equal(dx, expected) and dx.requires_grad
    with pytest.raises(RuntimeError, match=r"cannot be differentiated twice.*set_recipe\(model, None\)"):
        dx.square().sum().backward()


@pytest.mark.filterwarnings("ignore:.torch.jit.script:FutureWarning")  # By make_dual.
@pytest.mark.parametrize("dual", ["x", "weight", "bias"])
def test_forward_mode_is_refused_where_no_gradient_flows(backend, dual):
    layer, x, _ = make(backend)
    tensors = {"x": x, "weight": layer.weight.detach(), "bias": layer.bias.detach()}
    with torch.autograd.forward_ad.dual_level():
        tc.linear(**tensors)
        tensors[dual] = torch.autograd.forward_ad.make_dual(tensors[dual], torch.ones_like(tensors[dual]))
        with pytest.raises(RuntimeError, match="no forward-mode derivative"):
            tc.linear(**tensors)


def test_undefined_gradient_costs_nothing(backend):
    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            return y.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    layer, x, _ = make(backend)
    y = Cut.apply(layer(x.requires_grad_()))
    with OpCalls() as ops:
        y.sum().backward()
    assert not ops.calls and x.grad is None and layer.weight.grad is None
