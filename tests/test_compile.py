"""The layer under ``torch.compile`` and ``torch.export``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

import transcast as tc
from layer import SavedForBackward, data, layer_like, run
from transcast import FP8Linear

BACKENDS = ["aot_eager", "inductor"]
README = Path(__file__).parent.parent / "README.md"


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make(backend, n=24, k=40):
    where = {"device": backend.device}
    return layer_like(data(n, k, seed=1, **where), data(n, seed=2, **where))


def batch(backend, tokens, n=24, k=40):
    return data(tokens, k, device=backend.device), data(tokens, n, seed=3, device=backend.device)


class Compiled(nn.Module):
    """``layer`` compiled with a count of its graphs; shows its parameters as ``run`` expects them."""

    def __init__(self, layer: nn.Module, backend: str, **options) -> None:
        super().__init__()
        self.layer = layer
        self.counter = CompileCounterWithBackend(backend)
        self.call = torch.compile(layer, backend=self.counter, fullgraph=True, **options)

    weight = property(lambda self: self.layer.weight)
    bias = property(lambda self: self.layer.bias)
    graphs = property(lambda self: self.counter.frame_count)

    def forward(self, *args, **kwargs):
        return self.call(*args, **kwargs)


@pytest.mark.parametrize("how", BACKENDS)
def test_G1_training_is_one_graph_for_any_number_of_tokens(backend, how):
    layer = make(backend)
    compiled = Compiled(layer, how, dynamic=True)
    for tokens in (17, 2, 33, 16, 50):
        x, grad = batch(backend, tokens)
        run(compiled, x, grad).assert_equal(run(layer, x, grad))
    assert compiled.graphs == 1
    for tokens in (0, 1):  # torch itself specialises these sizes
        x, grad = batch(backend, tokens)
        run(compiled, x, grad).assert_equal(run(layer, x, grad))
    assert compiled.graphs <= 3


def test_G1_automatic_dynamic_shapes(backend):
    layer = make(backend)
    compiled = Compiled(layer, "aot_eager")
    for tokens in (17, 5, 33, 16, 50):
        x, grad = batch(backend, tokens)
        run(compiled, x, grad).assert_equal(run(layer, x, grad))
    assert compiled.graphs == 2, "one for the first size, one for all others"


@pytest.mark.parametrize("how", BACKENDS)
@pytest.mark.parametrize("quantized", [True, False])
def test_G1_inference(backend, how, quantized):
    layer = make(backend).eval()
    if quantized:
        tc.quantize_weights_(layer)
    compiled = Compiled(layer, how, dynamic=True)
    with torch.no_grad():
        for tokens in (17, 2, 33):
            x, _ = batch(backend, tokens)
            assert torch.equal(compiled(x), layer(x))
    assert compiled.graphs == 1


def test_G1_quantized_weights_pass_gradients(backend):
    layer = tc.quantize_weights_(make(backend))
    x, grad = batch(backend, 17)
    run(Compiled(layer, "aot_eager"), x, grad).assert_equal(run(layer, x, grad))


def test_G1_model_under_autocast_with_checkpointing(backend):
    torch.manual_seed(0)
    model = tc.convert(nn.Sequential(nn.Linear(40, 65), nn.GELU(), nn.Linear(65, 24)).to(backend.device))
    x, grad = batch(backend, 17)

    def step(x):
        with torch.autocast(backend.device.type, torch.bfloat16):
            return checkpoint(model, x, use_reentrant=False)

    def results(call):
        model.zero_grad()
        leaf = x.clone().requires_grad_()
        y = call(leaf)
        y.backward(grad.to(y.dtype))
        return [y.detach(), leaf.grad, *(p.grad.clone() for p in model.parameters())]

    got, want = results(torch.compile(step, backend="aot_eager", fullgraph=True)), results(step)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(got, want))


def test_L9_compiled_saves_fp8_too(backend):
    layer = make(backend, 48, 64)
    x, _ = batch(backend, 32, 48, 64)
    compiled = Compiled(layer, "aot_eager")
    with SavedForBackward() as saved:
        compiled(x.requires_grad_())
    assert saved.bytes == 64 * 32 + 64 * 48 + 8


@pytest.mark.parametrize("frozen", ["weight", "bias", "both"])
def test_G1_frozen_parameters(backend, frozen):
    layer = make(backend)
    layer.weight.requires_grad_(frozen == "bias")
    layer.bias.requires_grad_(frozen == "weight")
    x, grad = batch(backend, 17)
    run(Compiled(layer, "aot_eager"), x, grad).assert_equal(run(layer, x, grad))


def test_caches_are_bypassed_without_a_recompilation(backend):
    layer = make(backend)
    compiled = Compiled(layer, "aot_eager")
    x, grad = batch(backend, 17)
    want = run(layer, x, grad)
    run(compiled, x, grad).assert_equal(want)
    with tc.cached_weights(layer):
        run(compiled, x, grad).assert_equal(want)
        assert layer._weight_cache._entry is None
    assert compiled.graphs == 1
    for first in (True, False):
        run(compiled, x, grad, is_first_microbatch=first).assert_equal(want)
    assert layer._weight_cache._entry is None


def test_set_recipe_takes_effect(backend):
    layer = make(backend)
    compiled = Compiled(layer, "aot_eager")
    x, grad = batch(backend, 17)
    fp8 = run(compiled, x, grad)
    tc.set_recipe(layer, None)
    run(compiled, x, grad).assert_equal(run(layer, x, grad))
    tc.set_recipe(layer, "tensorwise")
    run(compiled, x, grad).assert_equal(fp8)


def test_main_grad_breaks_the_graph_and_works(backend):
    layer = FP8Linear(40, 24, device=backend.device, wgrad_into="main_grad")
    layer.weight.main_grad = torch.zeros_like(layer.weight)
    x, grad = batch(backend, 17)
    torch.compile(layer, backend="aot_eager")(x).backward(grad)
    compiled = layer.weight.main_grad.clone()
    layer.weight.main_grad.zero_()
    layer(x).backward(grad)
    assert compiled.any() and torch.equal(layer.weight.main_grad, compiled)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="wgrad_into_main_grad"):
        torch.compile(layer, backend="aot_eager", fullgraph=True)(x)


def test_export_of_a_layer_with_main_grad(backend):
    model = nn.Sequential(FP8Linear(40, 24, device=backend.device, wgrad_into="main_grad"))
    x, _ = batch(backend, 17)
    with torch.no_grad():
        program = torch.export.export(model, (x,), strict=False)
        assert torch.equal(program.module()(x), model(x))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("weights", ["no_grad", "with_grad", "quantized"])
def test_G1_export(backend, strict, weights):
    model = tc.convert(
        nn.Sequential(nn.Linear(40, 65), nn.ReLU(), nn.Linear(65, 24)).to(backend.device)
    ).eval()
    if weights == "quantized":
        tc.quantize_weights_(model).requires_grad_(False)
    shapes = ({0: torch.export.Dim("tokens", min=2)},)
    with torch.set_grad_enabled(weights == "with_grad"):
        program = torch.export.export(model, (batch(backend, 17)[0],), dynamic_shapes=shapes, strict=strict)
    ops = [
        str(node.target).removeprefix("transcast.")
        for node in program.graph.nodes
        if "transcast" in str(node.target)
    ]
    casts = {"no_grad": 2, "quantized": 1}
    if weights in casts:
        assert ops == [*["quantize.default"] * casts[weights], "gemm.default"] * 2
    for tokens in (17, 3, 50):
        x, _ = batch(backend, tokens)
        assert torch.equal(program.module()(x), model(x))


def readme_function() -> type[torch.autograd.Function]:
    """The autograd.Function of README.md, as it stands there."""
    (code,) = re.findall(r"^```python\n(class ScaledMatmul\(.*?)^```$", README.read_text(), re.M | re.S)
    names = {"torch": torch, "tc": tc}
    exec(code, names)
    return names["ScaledMatmul"]


@pytest.mark.parametrize("how", ["eager", "aot_eager"])
def test_autograd_function_of_the_readme(backend, how):
    function = readme_function()
    x, grad = (t.to(torch.bfloat16) for t in batch(backend, 17))
    weight = make(backend).weight.detach().to(torch.bfloat16)

    def results(call):
        leaves = [t.clone().requires_grad_() for t in (x, weight)]
        y = call(*leaves)
        y.backward(grad)
        return [y.detach(), *(t.grad for t in leaves)]

    got = results(torch.compile(function.apply, backend=how, fullgraph=True))
    want = results(function.apply)
    assert want[1].any() and want[2].any()
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(got, want))
