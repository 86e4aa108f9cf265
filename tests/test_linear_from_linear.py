"""``FP8Linear.from_linear`` and ``to_linear``: layers that share everything with an ``nn.Linear``."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import transcast as tc
from layer import data
from transcast import FP8Linear


class Scaled(nn.Linear):
    """A subclass, which may compute something else."""


def test_from_linear_and_back_share_everything():
    plain = nn.Linear(16, 24).eval()
    plain.weight.requires_grad_(False)
    plain.register_buffer("extra", torch.ones(1), persistent=False)
    layer = FP8Linear.from_linear(plain, "tensorwise")
    back = layer.to_linear()
    for module in (layer, back):
        assert module.weight is plain.weight and module.bias is plain.bias and module.extra is plain.extra
        assert not module.training and (module.in_features, module.out_features) == (16, 24)
        assert list(module.state_dict()) == ["weight", "bias"]
    assert type(back) is nn.Linear and vars(back).keys() == vars(plain).keys()
    layer.register_buffer("more", torch.ones(1))
    assert "more" not in plain._buffers, "containers are not shared"


def test_L10_handles_taken_before_remove_hooks_after():
    called = []
    plain = nn.Linear(16, 24)
    handles = [
        plain.register_forward_pre_hook(lambda *_: called.append("pre"), prepend=True),
        plain.register_forward_hook(lambda *_, **__: called.append("hook"), with_kwargs=True),
        plain.register_full_backward_hook(lambda *_: called.append("backward")),
        plain.register_state_dict_post_hook(lambda *_: called.append("state")),
    ]
    layer = FP8Linear.from_linear(plain)
    back = layer.to_linear()
    hooks = [name for name in vars(plain) if "_hooks" in name]
    assert len(hooks) > 8
    assert all(getattr(module, n) is getattr(plain, n) for module in (layer, back) for n in hooks)
    for wanted in (["pre", "hook", "backward", "state"], []):
        for module in (layer, back):
            called.clear()
            module(data(3, 16).requires_grad_()).sum().backward()
            module.state_dict()
            assert called == wanted
        for handle in handles:
            handle.remove()


def test_L10_load_hooks_know_a_module_that_lives():
    model = nn.Sequential(nn.Linear(16, 24))
    seen = []
    # Such a hook is handed the module, of which torch keeps a weak reference.
    model[0].register_load_state_dict_pre_hook(lambda module, *_: seen.append(module))
    tc.convert(model)
    gc.collect()
    model.load_state_dict(model.state_dict())
    back = model[0].to_linear()
    back.load_state_dict(back.state_dict())
    assert seen == [model[0], back]
    seen.clear()
    del back
    gc.collect()
    model.load_state_dict(model.state_dict())
    assert seen == [model[0]]


def test_to_linear_of_a_parametrized_layer_is_refused():
    layer = nn.utils.parametrizations.weight_norm(FP8Linear(8, 8))
    with pytest.raises(TypeError, match="parametrized.*remove_parametrizations"):
        layer.to_linear()


def test_from_linear_refuses_what_is_no_plain_linear():
    with pytest.raises(TypeError, match="got a subclass of nn.Linear: Scaled"):
        FP8Linear.from_linear(Scaled(4, 4))
    with pytest.raises(TypeError, match="got a subclass of nn.Linear: FP8Linear"):
        FP8Linear.from_linear(FP8Linear(4, 4))
    with pytest.raises(TypeError, match="got a Conv1d"):
        FP8Linear.from_linear(nn.Conv1d(4, 4, 1))
    patched = nn.Linear(4, 4)
    patched.forward = lambda x: x
    with pytest.raises(TypeError, match="whose forward was replaced on the instance"):
        FP8Linear.from_linear(patched)
    with pytest.warns(UserWarning, match="is an nn.Linear whose forward was replaced on the instance"):
        tc.convert(nn.Sequential(patched))


def test_compiled_module_is_not_left_behind():
    plain = nn.Linear(16, 8)
    plain.compile(backend="eager")
    layer = FP8Linear.from_linear(plain)
    x = data(3, 16)
    assert torch.equal(layer(x), tc.linear(x, plain.weight, plain.bias))


def test_parametrized_linear_is_reported():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 4))
    tc.convert(model)
    assert model.fp8_report.skipped == (("0", "is a subclass of nn.Linear: ParametrizedLinear"),)


def test_constructor_is_nn_linears():
    torch.manual_seed(3)
    plain = nn.Linear(16, 24, False, "cpu", torch.bfloat16)
    torch.manual_seed(3)
    layer = FP8Linear(16, 24, False, "cpu", torch.bfloat16)
    assert torch.equal(layer.weight, plain.weight) and layer.bias is None and isinstance(layer, nn.Linear)
