"""Weights cast once for several micro-batches."""

from __future__ import annotations

import contextlib
import copy
import io

import pytest
import torch
from torch import nn

import transcast as tc
from conftest import assert_same_bytes
from layer import OpCalls, composed, data, layer_like, run
from transcast import FP8Linear, Tensorwise

MICRO_BATCHES = 5


def make(backend):
    where = {"device": backend.device}
    layer = layer_like(data(24, 40, seed=1, **where), data(24, seed=2, **where))
    return layer, data(17, 40, **where), data(17, 24, seed=3, **where)


def expected(layer, x, grad):
    return composed(x, layer.weight.detach(), layer.bias.detach(), grad)


def flags(step: int) -> dict[str, bool]:
    return {"is_first_microbatch": step == 0}


def weight_casts(ops: OpCalls, micro_batches: int) -> int:
    """Casts beyond the one of the input that each forward makes."""
    return ops.calls["quantize"] + ops.calls["quantize_transpose"] - micro_batches


# --- L1, L2: the same results, one cast ---------------------------------------------------------------------


@pytest.mark.parametrize("by", ["context", "flag"])
def test_L1_five_micro_batches_are_bitwise_uncached(backend, by):
    layer, _, grad = make(backend)
    batches = [data(17, 40, seed=step, device=backend.device) for step in range(MICRO_BATCHES)]
    wanted = [expected(layer, x, grad) for x in batches]
    with tc.cached_weights(layer if by == "context" else nn.Identity()), OpCalls() as ops:
        results = [run(layer, x, grad, **(flags(i) if by == "flag" else {})) for i, x in enumerate(batches)]
    for result, want in zip(results, wanted):
        result.assert_equal(want)
    assert weight_casts(ops, MICRO_BATCHES) == 1


@pytest.mark.parametrize("by", ["context", "flag"])
@pytest.mark.parametrize("no_grad", [torch.no_grad, torch.inference_mode])
def test_L2_first_micro_batch_without_grad(backend, by, no_grad):
    layer, x, grad = make(backend)
    want = expected(layer, x, grad)
    with tc.cached_weights(layer if by == "context" else nn.Identity()), OpCalls() as ops:
        with no_grad():
            assert torch.equal(layer(x, **(flags(0) if by == "flag" else {})), want.y)
        for _ in range(2):
            run(layer, x, grad, **(flags(1) if by == "flag" else {})).assert_equal(want)
    assert weight_casts(ops, 3) == 1 and ops.calls["transpose"] == 1


def test_L2_first_layer_without_input_gradient_then_with(backend):
    layer, x, grad = make(backend)
    want = expected(layer, x, grad)
    with tc.cached_weights(layer):
        layer(x).backward(grad)
        assert torch.equal(layer.weight.grad, want.dweight)
        run(layer, x, grad).assert_equal(want)


def test_flag_false_without_a_copy_casts(backend):
    layer, x, grad = make(backend)
    run(layer, x, grad, is_first_microbatch=False).assert_equal(expected(layer, x, grad))


def test_flag_true_casts_anew_and_none_uses_no_cache(backend):
    layer, x, grad = make(backend)
    run(layer, x, grad, is_first_microbatch=True)
    layer.weight.data.mul_(-1)  # moves neither address nor version
    run(layer, x, grad).assert_equal(expected(layer, x, grad))
    run(layer, x, grad, is_first_microbatch=True).assert_equal(expected(layer, x, grad))


def test_cache_holds_data_and_scale_of_one_cast(backend):
    layer, x, grad = make(backend)
    ops = torch.ops.transcast
    want = ops.quantize_transpose(layer.weight.detach(), torch.float8_e4m3fn)
    with tc.cached_weights(layer):
        run(layer, x, grad)
        entry = layer._weight_cache._entry
        for got, value in zip(entry[2:], want, strict=True):
            assert_same_bytes(got, value, "cache")
        assert entry.q.nbytes + entry.q_t.nbytes == 24 * 40 + 40 * 32, (
            "L9: 2 bytes per weight, padding included"
        )
        layer.recipe = Tensorwise(margin=12)
        run(layer, x, grad).assert_equal(
            composed(x, layer.weight.detach(), layer.bias.detach(), grad, layer.recipe)
        )


def test_nested_blocks_and_exit(backend):
    layer, x, grad = make(backend)
    with OpCalls() as ops, tc.cached_weights(layer) as inside:
        assert inside is layer
        with tc.cached_weights(nn.Sequential(layer)):
            run(layer, x, grad)
        run(layer, x, grad)
        assert weight_casts(ops, 2) == 1, "the inner block must not drop what the outer one holds"
    assert layer._weight_cache._entry is None and layer._weight_cache.scopes == 0
    with pytest.raises(KeyError), tc.cached_weights(layer):
        layer(x)
        raise KeyError
    assert layer._weight_cache._entry is None and layer._weight_cache.scopes == 0


# --- L11: weights that change -------------------------------------------------------------------------------

OPTIMIZERS = {
    "SGD(fused)": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "AdamW(fused)": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "AdamW(foreach)": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_L11_optimizer_step_inside_the_block_is_noticed(backend, name):
    layer, x, grad = make(backend)
    optimizer = OPTIMIZERS[name](layer.parameters())
    with tc.cached_weights(layer):
        before = run(layer, x, grad)
        optimizer.step()
        after = run(layer, x, grad)
        after.assert_equal(expected(layer, x, grad))
    assert not torch.equal(before.y, after.y)


def in_place(layer):
    with torch.no_grad():
        layer.weight.mul_(-1)


def new_data(layer):
    layer.weight.data = layer.weight.data * -1


def new_parameter(layer):
    layer.weight = nn.Parameter(layer.weight.detach() * -1)


def load(layer):
    layer.load_state_dict({"weight": layer.weight * -1, "bias": layer.bias})


@pytest.mark.parametrize("change", [in_place, new_data, new_parameter, load])
def test_L11_visible_changes_are_noticed(backend, change):
    layer, x, grad = make(backend)
    with tc.cached_weights(layer):
        run(layer, x, grad)
        change(layer)
        run(layer, x, grad).assert_equal(expected(layer, x, grad))


@pytest.mark.parametrize("by", ["context", "flag"])
def test_loading_may_swap_a_cached_weight(backend, by):
    layer, x, grad = make(backend)
    tied = copy.copy(layer)  # Another module with the same weight.
    new = {"weight": data(24, 40, seed=8, device=backend.device), "bias": data(24, device=backend.device)}
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with tc.cached_weights(layer) if by == "context" else contextlib.nullcontext():
            with torch.no_grad():
                layer(x, is_first_microbatch=None if by == "context" else True)
            tied.load_state_dict(new)
            got = run(layer, x, grad, **({} if by == "context" else {"is_first_microbatch": False}))
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert torch.equal(layer.weight, new["weight"])
    got.assert_equal(expected(layer, x, grad))


def test_inference_weights_are_not_cached(backend):
    layer, x, _ = make(backend)
    with torch.inference_mode():
        layer.weight = nn.Parameter(layer.weight.clone(), requires_grad=False)
        with tc.cached_weights(layer):
            layer(x)
            layer.weight.mul_(-2)  # Moves no version counter: there is none.
            assert torch.equal(layer(x), copy.deepcopy(layer)(x))


def test_L11_another_weight_at_the_same_address_is_noticed(backend):
    layer, x, grad = make(backend)
    memory = layer.weight.detach().clone()
    with tc.cached_weights(layer):
        for sign in (1, -1):
            # .data: each parameter has a version counter of its own, at 0.
            memory.data.mul_(sign)
            layer.weight = nn.Parameter(memory.data)
            assert layer.weight.data_ptr() == memory.data_ptr() and layer.weight._version == 0
            run(layer, x, grad).assert_equal(expected(layer, x, grad))


def data_write(layer, flat):
    layer.weight.data.mul_(-1)


def flat_buffer_write(layer, flat):
    flat.mul_(-1)


@pytest.mark.parametrize("change", [data_write, flat_buffer_write])
def test_L11_hidden_changes_are_found_by_the_check(backend, change, monkeypatch):
    layer, x, grad = make(backend)
    flat = layer.weight.detach().clone().flatten()
    layer.weight.data = flat.view(24, 40)
    model = nn.ModuleDict({"up": layer})
    with tc.cached_weights(model):
        stale = run(layer, x, grad)
        monkeypatch.setenv("TRANSCAST_CHECK_CACHE", "1")
        run(layer, x, grad).assert_equal(stale)
        change(layer, flat)
        with pytest.raises(
            RuntimeError, match=r"TRANSCAST_CHECK_CACHE.*copy of up's weight is stale.*cached_weights\(\)"
        ):
            layer(x)
        monkeypatch.delenv("TRANSCAST_CHECK_CACHE")
        assert torch.equal(layer(x), stale.y), "as documented, unnoticed without the check"
    run(layer, x, grad).assert_equal(expected(layer, x, grad))


def test_L11_check_sees_a_scale_that_changed_alone(backend, monkeypatch):
    layer, x, grad = make(backend)
    monkeypatch.setenv("TRANSCAST_CHECK_CACHE", "1")
    layer(x, is_first_microbatch=True)
    layer.weight.data.mul_(2)  # the same bytes with another scale
    with pytest.raises(
        RuntimeError, match=r"copy of FP8Linear\(in_features=40.*is stale.*is_first_microbatch=True"
    ):
        layer(x, is_first_microbatch=False)


# --- where a copy must not go -------------------------------------------------------------------------------


def test_copies_stay_out_of_copies_pickles_and_state_dicts(backend):
    layer, x, grad = make(backend)
    keys = list(layer.state_dict())
    run(layer, x, grad, is_first_microbatch=True)
    assert layer._weight_cache._entry is not None
    assert list(layer.state_dict()) == keys
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for twin in (copy.deepcopy(layer), torch.load(file, weights_only=False), layer.to_linear()):
        assert getattr(twin, "_weight_cache", None) is None or twin._weight_cache._entry is None
    layer.to(torch.bfloat16)
    assert layer._weight_cache._entry is None


def test_layers_without_anything_to_cache(backend):
    layer, x, grad = make(backend)
    layer.recipe = None
    with tc.cached_weights(layer), OpCalls() as ops:
        run(layer, x, grad, is_first_microbatch=True)
    assert not ops.calls and layer._weight_cache._entry is None
    layer.recipe = "tensorwise"
    want = layer(x)
    tc.quantize_weights_(layer)
    with tc.cached_weights(layer):
        assert torch.equal(layer(x, is_first_microbatch=False), want)


def test_frozen_weight_is_cached_with_its_transpose(backend):
    layer, x, grad = make(backend)
    want = expected(layer, x, grad)
    layer.requires_grad_(False)
    with tc.cached_weights(layer), OpCalls() as ops:
        for _ in range(2):
            assert torch.equal(run(layer, x, grad).dx, want.dx)
    assert ops.calls == {"quantize_transpose": 1, "quantize": 4, "gemm": 4}
    assert isinstance(layer, FP8Linear)
