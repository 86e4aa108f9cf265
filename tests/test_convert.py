"""``convert`` and its report, ``set_recipe``."""

from __future__ import annotations

import copy
import logging
import pickle

import pytest
import torch
from torch import nn

import transcast as tc
from layer import OpCalls, data
from transcast import ConvertReport, FP8Linear, Tensorwise


class Scaled(nn.Linear):
    """A subclass with a forward of its own."""

    def forward(self, x):
        return 2 * super().forward(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16))
        self.scaled = Scaled(16, 16)
        self.double = nn.Linear(16, 16, dtype=torch.float64)
        self.lm_head = nn.Linear(16, 10, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, tokens):
        return self.lm_head(self.scaled(self.mlp(self.embed(tokens))))


# --- convert ------------------------------------------------------------------------------------------------


def test_convert_reports_what_it_did(caplog):
    model = Model()
    with caplog.at_level(logging.INFO, "transcast"):
        assert tc.convert(model) is model
    assert model.fp8_report == ConvertReport(
        converted=("mlp.0", "mlp.2"),
        skipped=(
            ("scaled", "is a subclass of nn.Linear: Scaled"),
            ("double", "has a weight of unsupported dtype torch.float64"),
            ("lm_head", "matches skip='lm_head'"),
        ),
    )
    assert str(model.fp8_report) in caplog.text
    assert "converted 2 layer(s) to FP8, skipped 3" in str(model.fp8_report)
    assert "lm_head: matches skip" in str(model.fp8_report)
    with pytest.raises(AttributeError):
        model.fp8_report.converted = ()
    kinds = {name: type(module) for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert kinds == {
        "mlp.0": FP8Linear,
        "mlp.2": FP8Linear,
        "scaled": Scaled,
        "double": nn.Linear,
        "lm_head": nn.Linear,
    }
    assert isinstance(model.mlp[0], nn.Linear)
    assert pickle.loads(pickle.dumps(model.fp8_report)) == model.fp8_report


def test_convert_again_changes_nothing():
    model = tc.convert(Model())
    layer = model.mlp[0]
    tc.convert(model, Tensorwise(pow2=True))
    assert model.mlp[0] is layer and layer.recipe == Tensorwise()
    assert model.fp8_report.converted == ()
    reason = dict(model.fp8_report.skipped)["mlp.0"]
    assert reason == "is FP8Linear already, recipe=Tensorwise(pow2=False, margin=0); set_recipe switches it"


def test_filter_and_skip():
    asked = []

    def keep(module, fqn):
        asked.append((fqn, type(module)))
        return fqn != "mlp.2"

    model = tc.convert(Model(), filter_fn=keep, skip=())
    assert asked == [("mlp.0", nn.Linear), ("mlp.2", nn.Linear), ("lm_head", nn.Linear)]
    assert model.fp8_report.converted == ("mlp.0", "lm_head")
    assert ("mlp.2", "rejected by filter_fn") in model.fp8_report.skipped
    assert tc.convert(Model(), skip="mlp.*").fp8_report.converted == ("lm_head",)
    assert tc.convert(Model(), skip=["0", "lm_*"]).fp8_report.converted == ("mlp.2",)


def test_nothing_converted_warns():
    with pytest.warns(UserWarning, match=r"no layer was converted(.|\n)*skipped   lm_head: matches skip"):
        tc.convert(nn.ModuleDict({"lm_head": nn.Linear(4, 4)}))


def test_root_linear_is_returned_converted():
    plain = nn.Linear(4, 4)
    layer = tc.convert(plain, Tensorwise(pow2=True))
    assert type(layer) is FP8Linear and layer.weight is plain.weight and layer.recipe == Tensorwise(pow2=True)
    assert layer.fp8_report.converted == ("",) and "converted (model)" in str(layer.fp8_report)


def test_wrong_recipe_changes_nothing():
    model = Model()
    with pytest.raises(ValueError, match="mxfp8"):
        tc.convert(model, "mxfp8")
    assert type(model.mlp[0]) is nn.Linear and not hasattr(model, "fp8_report")


def test_one_layer_under_two_names_stays_one():
    shared = nn.Linear(8, 8)
    model = tc.convert(nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)}))
    assert type(model["a"]) is FP8Linear and model["a"] is model["b"][0]
    assert model.fp8_report.converted == ("a", "b.0")


def test_cycle_of_modules():
    root = nn.Module()
    root.child = nn.Module()
    root.child.parent, root.child.linear = root, nn.Linear(8, 8)
    tc.convert(root)
    assert type(root.child.linear) is FP8Linear and root.fp8_report.converted == ("child.linear",)


def test_L10_parameters_hooks_and_modes_are_kept():
    model = Model()
    model.mlp[0].eval()
    model.mlp[0].weight.requires_grad_(False)
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    seen = []
    handle = model.mlp[2].register_forward_hook(lambda module, *_: seen.append(type(module)))
    model.mlp[2].register_full_backward_hook(lambda module, *_: seen.append("backward"))
    model.mlp[2].note = "kept"
    tc.convert(model)
    assert all(dict(model.named_parameters())[name] is p for name, p in parameters.items())
    assert not model.mlp[0].training and model.mlp[2].training and model.mlp[2].note == "kept"
    before = model.mlp[2].weight.detach().clone()
    model(torch.arange(10)).sum().backward()
    optimizer.step()
    assert seen == [FP8Linear, "backward"] and not torch.equal(model.mlp[2].weight, before)
    assert model.mlp[0].weight.grad is None, "L5: requires_grad is kept"
    handle.remove()
    model(torch.arange(10))
    assert len(seen) == 2, "a handle taken before removes its hook after"


def test_tied_output_projection():
    model = tc.convert(Model(), skip=())
    assert type(model.lm_head) is FP8Linear and model.lm_head.weight is model.embed.weight
    model(torch.arange(10)).sum().backward()
    assert model.embed.weight.grad.abs().sum() > 0


def test_L10_deepcopy_of_a_converted_model():
    model = tc.convert(Model())
    twin = copy.deepcopy(model)
    tokens = torch.arange(10)
    assert torch.equal(twin(tokens), model(tokens)) and twin.fp8_report == model.fp8_report
    assert twin.lm_head.weight is twin.embed.weight


def test_skip_by_one_of_two_names():
    shared = nn.Linear(8, 8)
    model = tc.convert(nn.ModuleDict({"body": shared, "lm_head": shared}))
    assert type(model["body"]) is FP8Linear and type(model["lm_head"]) is nn.Linear
    assert model["body"].weight is model["lm_head"].weight


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("quantized", [True, False])
def test_torchs_own_encoder_calls_the_layers_in_evaluation(quantized):
    def encoder():
        torch.manual_seed(0)
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 2)

    model = tc.convert(encoder())
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    x = data(2, 5, 16)
    want = model(x, src_key_padding_mask=padding)
    assert (
        "layers.0.self_attn.out_proj",
        "is a subclass of nn.Linear: NonDynamicallyQuantizableLinear",
    ) in model.fp8_report.skipped
    if quantized:
        tc.quantize_weights_(model)
    model.eval()
    with torch.no_grad(), OpCalls() as ops:
        got = model(x, src_key_padding_mask=padding)
    assert ops.calls["gemm"] == 4
    assert torch.allclose(got[~padding], want[~padding], atol=1e-5)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("by", ["quantize_weights_", "set_recipe", "cached_weights"])
def test_encoder_with_layers_put_in_by_hand_calls_them(by):
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    layer.linear1, layer.linear2 = FP8Linear.from_linear(layer.linear1), FP8Linear.from_linear(layer.linear2)
    if by == "quantize_weights_":
        tc.quantize_weights_(layer)
    elif by == "set_recipe":
        tc.set_recipe(layer, "tensorwise")
    else:
        with tc.cached_weights(layer):
            pass
    with torch.no_grad(), OpCalls() as ops:
        layer.eval()(data(2, 5, 16))
    assert ops.calls["gemm"] == 2


# --- set_recipe ---------------------------------------------------------------------------------------------


def test_set_recipe_switches_and_returns_the_model():
    model = tc.convert(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)))
    plain = nn.Sequential(*(layer.to_linear() for layer in model))
    x = data(5, 16)
    fp8 = model(x)
    assert tc.set_recipe(model, None) is model
    assert torch.equal(model(x), plain(x))
    tc.set_recipe(model, "tensorwise")
    assert torch.equal(model(x), fp8)
    tc.set_recipe(model, None, filter_fn=lambda module, fqn: fqn in ("0", "2"))
    with OpCalls() as ops:
        model(x)
    assert ops.calls["gemm"] == 1 and [layer.recipe for layer in model] == [None, Tensorwise(), None]


def test_convert_to_high_precision():
    layer = tc.convert(nn.Linear(16, 16), None)
    x = data(5, 16)
    assert layer.recipe is None and torch.equal(layer(x), layer.to_linear()(x))
