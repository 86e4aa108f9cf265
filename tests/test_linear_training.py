"""The layer in a training loop: what it computes, saves and shares; checkpointing, copies, resuming."""

from __future__ import annotations

import copy
import gc
import io

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import transcast as tc
from cases import DTYPES, E4M3
from layer import OpCalls, SavedForBackward, ceil16, composed, data, layer_like, run
from transcast import FP8Linear

SHAPES = [(32, 48, 64), (17, 65, 33)]  # tokens, N, K


def make(backend, shape=(17, 24, 40)):
    tokens, n, k = shape
    where = {"device": backend.device}
    layer = layer_like(data(n, k, seed=1, **where), data(n, seed=2, **where))
    return layer, data(tokens, k, **where), data(tokens, n, seed=3, **where)


def mlp(seed: int = 0, device: str | torch.device = "cpu") -> nn.Sequential:
    torch.manual_seed(seed)
    return tc.convert(
        nn.Sequential(nn.Linear(40, 24), nn.GELU(), nn.Linear(24, 33), nn.GELU(), nn.Linear(33, 7)).to(device)
    )


def losses(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, device: torch.device
) -> list[float]:
    result = []
    for step in steps:
        optimizer.zero_grad()
        loss = (
            (model(data(17, 40, seed=step, device=device)) - data(17, 7, seed=-step - 1, device=device))
            .square()
            .mean()
        )
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


# --- only what is needed ------------------------------------------------------------------------------------

FORWARD_ONLY = {"quantize": 2, "gemm": 1}
OPS_BY_NEED = {  # (x, weight, bias) need a gradient
    (1, 1, 1): {"quantize_transpose": 2, "quantize_transpose_dbias": 1, "gemm": 3},
    (1, 1, 0): {"quantize_transpose": 3, "gemm": 3},
    (0, 1, 1): {"quantize_transpose": 1, "quantize": 1, "quantize_transpose_dbias": 1, "gemm": 2},
    (0, 1, 0): {"quantize_transpose": 2, "quantize": 1, "gemm": 2},
    (1, 0, 1): {"quantize_transpose": 1, "quantize": 1, "quantize_transpose_dbias": 1, "gemm": 2},
    (1, 0, 0): {"quantize_transpose": 1, "quantize": 2, "gemm": 2},
    (0, 0, 1): {**FORWARD_ONLY, "quantize_transpose_dbias": 1},
    (0, 0, 0): FORWARD_ONLY,
}


@pytest.mark.parametrize("need", OPS_BY_NEED, ids=str)
def test_L5_only_needed_gradients_are_computed(backend, need):
    layer, x, grad = make(backend)
    expected = composed(x, layer.weight.detach(), layer.bias.detach(), grad)
    x.requires_grad_(bool(need[0]))
    layer.weight.requires_grad_(bool(need[1]))
    layer.bias.requires_grad_(bool(need[2]))
    with OpCalls() as ops, SavedForBackward() as saved:
        y = layer(x)
        if any(need):
            y.backward(grad)
    assert ops.calls == OPS_BY_NEED[need]
    assert torch.equal(y, expected.y)
    for wanted, got, value in zip(
        need, (x.grad, layer.weight.grad, layer.bias.grad), (expected.dx, expected.dweight, expected.dbias)
    ):
        assert (got is not None) == bool(wanted)
        if wanted:
            assert torch.equal(got, value)
    assert [dtype for dtype, _ in saved.tensors] == [E4M3, torch.float32] * (need[0] + need[1])


def test_fast_accumulation_forward_only(backend):
    layer, x, grad = make(backend)
    with OpCalls() as ops:
        layer(x.requires_grad_()).backward(grad)
        with torch.no_grad():
            layer(x)
    assert ops.fast_accum == [True, False, False, True]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_L5_gradient_of_a_frozen_weights_bias(backend, dtype, thread_count):
    """The bits it has beside a weight that trains, for any leading dims and number of threads."""
    where = {"dtype": dtype, "device": backend.device}
    layer = FP8Linear(40, 24, **where)
    x, grad = data(1500, 40, **where), data(1500, 24, seed=3, **where)

    def bias_gradient(frozen: bool, x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        layer.weight.requires_grad_(not frozen)
        layer.zero_grad()
        layer(x).backward(grad)
        return layer.bias.grad

    wanted = bias_gradient(False, x, grad)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for leading in ((1500,), (1, 1500), (1500, 1), (30, 50)):
            got = bias_gradient(True, x.view(*leading, 40), grad.view(*leading, 24))
            assert torch.equal(got, wanted), (threads, leading)
    assert torch.equal(bias_gradient(True, x[0], grad[0]), grad[0])


def test_L5_without_grad_no_transpose(backend):
    layer, x, _ = make(backend)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context, OpCalls() as ops:
            assert layer(x.requires_grad_()).grad_fn is None
        assert ops.calls == FORWARD_ONLY


def test_L5_eval_mode_frozen_layer_passes_gradients(backend):
    layer, x, grad = make(backend)
    expected = run(layer, x, grad)
    layer.eval().requires_grad_(False)
    got = run(layer, x, grad)
    assert torch.equal(got.dx, expected.dx) and got.dweight is None and got.dbias is None


# --- memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_L9_bytes_saved_for_backward(backend, shape, dtype):
    tokens, n, k = shape
    layer, x, _ = make(backend, shape)
    with SavedForBackward() as saved:
        layer.to(dtype)(x.to(dtype).requires_grad_())
    assert saved.tensors == [
        (E4M3, (k, ceil16(tokens))),
        (torch.float32, ()),
        (E4M3, (k, ceil16(n))),
        (torch.float32, ()),
    ]
    assert saved.bytes == k * ceil16(tokens) + k * ceil16(n) + 8


def test_L9_no_growth_over_steps(backend):
    model = mlp(device=backend.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def live_tensors_after(steps: range, cached: bool) -> int:
        if cached:
            with tc.cached_weights(model):
                losses(model, optimizer, steps, backend.device)
        else:
            losses(model, optimizer, steps, backend.device)
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    for cached in (False, True):
        first = live_tensors_after(range(2), cached)
        assert live_tensors_after(range(2, 8), cached) == first


# --- around autograd ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("cached", [True, False])
def test_L4_checkpointing_changes_nothing(backend, use_reentrant, cached):
    model = mlp(device=backend.device)
    x, grad = data(17, 40, device=backend.device), data(17, 7, seed=3, device=backend.device)

    def gradients(forward) -> list[torch.Tensor]:
        model.zero_grad()
        leaf = x.clone().requires_grad_()
        y = forward(leaf)
        y.backward(grad)
        return [y.detach(), leaf.grad, *(p.grad.clone() for p in model.parameters())]

    expected = gradients(model)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    with tc.cached_weights(model if cached else nn.Identity()):
        got = gradients(lambda leaf: checkpoint(model, leaf, use_reentrant=use_reentrant))
    assert all(torch.equal(a, b) for a, b in zip(got, expected))
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_L10_deepcopy_is_independent(backend):
    layer, x, grad = make(backend)
    layer.eval()
    expected = run(layer, x, grad)
    with tc.cached_weights(layer):
        layer(x)
        twin = copy.deepcopy(layer)
        assert twin._weight_cache.scopes == 0 and twin._weight_cache._entry is None
    assert type(twin) is FP8Linear and twin.recipe == layer.recipe and not twin.training
    run(twin, x, grad).assert_equal(expected)
    with torch.no_grad():
        twin.weight.mul_(-1)
    run(layer, x, grad).assert_equal(expected)
    assert not torch.equal(twin(x), layer(x))


def test_tied_weights_add_up(backend):
    first, x, grad = make(backend, (17, 40, 40))
    second = layer_like(data(40, 40, device=backend.device), data(40, seed=7, device=backend.device))
    second.weight = first.weight
    x.requires_grad_()
    hidden = first(x)
    leaf = hidden.detach().requires_grad_()
    upper = run(second, leaf, grad)
    lower = run(first, x, upper.dx)
    first.weight.grad = None
    second(first(x)).backward(grad)
    assert torch.equal(first.weight.grad, upper.dweight + lower.dweight)


def test_functional_call_uses_given_weights(backend):
    layer, x, _ = make(backend)
    other = {"weight": layer.weight.detach() * 2, "bias": layer.bias.detach() + 1}
    expected = tc.linear(x, other["weight"], other["bias"])
    assert torch.equal(torch.func.functional_call(layer, other, (x,)), expected)
    with tc.cached_weights(layer):
        before = layer(x)
        assert torch.equal(torch.func.functional_call(layer, other, (x,)), expected)
        assert torch.equal(layer(x), before)


def test_training_learns_and_does_not_depend_on_threads(backend, thread_count):
    runs = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        model = mlp(device=backend.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        runs.append([losses(model, optimizer, range(1), backend.device)[0] for _ in range(60)])
    assert runs[0][-1] < 0.1 * runs[0][0]
    torch.testing.assert_close(torch.tensor(runs[0][0]), torch.tensor(runs[1][0]))


def test_L7_save_and_resume_gives_identical_losses(backend):
    model = mlp(device=backend.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses(model, optimizer, range(3), backend.device)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    expected = losses(model, optimizer, range(3, 6), backend.device)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    model = mlp(seed=9, device=backend.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert losses(model, optimizer, range(3, 6), backend.device) == expected


def test_input_by_keyword(backend):
    layer, x, _ = make(backend)
    assert torch.equal(layer(input=x), layer(x))
