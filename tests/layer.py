"""What the tests of the layer share: its arithmetic written out, inputs, and means to watch it."""

from __future__ import annotations

import copy
import io
import math
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from bounds import gemm_bound, sum_bound
from cases import E4M3, E5M2
from conftest import assert_same_bytes, assert_within
from gemm_checks import arithmetic_on
from transcast import FP8Linear, Tensorwise, quantize_weights_, reference

GRADIENTS = ("dx", "dweight", "dbias")


def data(
    *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).to(device)


def ceil16(n: int) -> int:
    return -(-n // 16) * 16


@dataclass
class Results:
    """Output and gradients of one forward and backward pass; None where there is no gradient."""

    y: Tensor
    dx: Tensor | None
    dweight: Tensor | None
    dbias: Tensor | None

    def assert_equal(self, other: Results) -> None:
        for name in ("y", *GRADIENTS):
            a, b = getattr(self, name), getattr(other, name)
            assert (a is None) == (b is None), f"{name}: {a} against {b}"
            if a is not None:
                assert a.dtype == b.dtype and a.shape == b.shape, (
                    f"{name}: {a.dtype} {a.shape}, {b.dtype} {b.shape}"
                )
                assert torch.equal(a.isnan(), b.isnan()), f"{name}: NaN in different places"
                differing = (a.nan_to_num(0.0) != b.nan_to_num(0.0)).sum().item()
                assert differing == 0, f"{name}: {differing} of {a.numel()} elements differ"


def run(layer: nn.Module, x: Tensor, grad: Tensor, **kwargs: bool) -> Results:
    """One pass. ``x`` is taken as a new leaf that requires a gradient."""
    x = x.detach().requires_grad_()
    layer.zero_grad(set_to_none=True)
    y = layer(x, **kwargs)
    y.backward(grad)
    bias = layer.bias
    return Results(y.detach(), x.grad, layer.weight.grad, None if bias is None else bias.grad)


def layer_like(
    weight: Tensor, bias: Tensor | None, recipe: Tensorwise | str | None = "tensorwise"
) -> FP8Linear:
    layer = FP8Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta", recipe=recipe)
    layer.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer


def quantized_like(layer: FP8Linear) -> FP8Linear:
    return quantize_weights_(copy.deepcopy(layer))


def same_weight(a: FP8Linear, b: FP8Linear) -> None:
    assert_same_bytes(a.weight, b.weight, "weight")
    assert_same_bytes(a.weight_scale_inv, b.weight_scale_inv, "weight_scale_inv")


def saved_and_loaded(state: dict) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def composed(
    x: Tensor, weight: Tensor, bias: Tensor | None, grad: Tensor, recipe: Tensorwise = Tensorwise()
) -> Results:
    """What the layer must compute, bit for bit: the raw ops one after the other."""
    ops = torch.ops.transcast
    how = (recipe.pow2, recipe.margin)
    x_q, x_s, x_t, x_ts = ops.quantize_transpose(x, E4M3, *how)
    w_q, w_s, w_t, w_ts = ops.quantize_transpose(weight, E4M3, *how)
    g_q, g_s, g_t, g_ts, dbias = ops.quantize_transpose_dbias(grad, E5M2, *how)
    return Results(
        ops.gemm(x_q, w_q, x_s, w_s, bias, "none", None, grad.dtype, True),
        ops.gemm(g_q, w_t, g_s, w_ts, None, "none", None, x.dtype, False),
        ops.gemm(g_t, x_t, g_ts, x_ts, None, "none", None, weight.dtype, False),
        None if bias is None else dbias.to(bias.dtype),
    )


def assert_near_reference(
    got: Results,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    grad: Tensor,
    recipe: Tensorwise = Tensorwise(),
) -> None:
    """Output and gradients against the reference's FP64 products of reference casts, within the bound of a
    GEMM."""
    how = (recipe.pow2, recipe.margin)
    x, weight, grad = x.cpu(), weight.detach().cpu(), grad.cpu()
    bias = None if bias is None else bias.detach().cpu()
    x_q, x_s, x_t, x_ts = reference.quantize_transpose(x, E4M3, *how)
    w_q, w_s, w_t, w_ts = reference.quantize_transpose(weight, E4M3, *how)
    g_q, g_s, g_t, g_ts = reference.quantize_transpose(grad, E5M2, *how)
    products = {
        "y": (x_q, w_q, x_s, w_s, bias),
        "dx": (g_q, w_t, g_s, w_ts, None),
        "dweight": (g_t, x_t, g_ts, x_ts, None),
    }
    for name, operands in products.items():
        value = getattr(got, name).cpu()
        y, pre = reference.gemm_fp64(*operands, "none", None, value.dtype)
        arithmetic = arithmetic_on(getattr(got, name).device, fast_accum=name == "y")
        bound, _ = gemm_bound(*operands, "none", y, pre, value.dtype, arithmetic=arithmetic)
        assert_within(value, y, bound, name)
    if bias is not None:
        rows = grad.reshape(math.prod(grad.shape[:-1]), grad.shape[-1])
        exact = rows.to(torch.float64).sum(dim=0)
        rounding = torch.finfo(got.dbias.dtype).eps * exact.abs()
        assert_within(got.dbias.cpu(), exact, sum_bound(rows) + rounding, "dbias")


class OpCalls(TorchDispatchMode):
    """Counts transcast's ops by name.

    ``fast_accum`` holds that argument of each GEMM.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.fast_accum: list[bool] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "transcast":
            name = func._schema.name.partition("::")[2]
            self.calls[name] += 1
            if name == "gemm":
                self.fast_accum.append(args[-1])
        return func(*args, **(kwargs or {}))


class SavedForBackward(saved_tensors_hooks):
    """Notes (dtype, shape) of all that autograd saves inside the ``with`` block."""

    def __init__(self) -> None:
        self.tensors: list[tuple[torch.dtype, tuple[int, ...]]] = []
        super().__init__(self._note, lambda tensor: tensor)

    def __enter__(self) -> SavedForBackward:
        super().__enter__()
        return self

    def _note(self, tensor: Tensor) -> Tensor:
        self.tensors.append((tensor.dtype, tuple(tensor.shape)))
        return tensor

    @property
    def bytes(self) -> int:
        return sum(math.prod(shape) * dtype.itemsize for dtype, shape in self.tensors)
