"""FP8Linear on the emulated CUDA path: against the CPU ops, and what one step launches."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import transcast as tc
from bounds import gemm_bound
from cases import DTYPES, E4M3
from conftest import assert_same_bytes, assert_within
from gemm_emu import kernels_of
from layer import data, layer_like
from transcast import reference

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import train_lm  # noqa: E402

CPU, EMU = torch.ops.transcast, torch.ops.transcast_emu


def redirect(monkeypatch: pytest.MonkeyPatch, replacement: Callable[[str], Any]) -> None:
    """Every raw op that a module of transcast holds becomes ``replacement`` of its name."""
    found = 0
    for module in [m for name, m in sys.modules.items() if name.startswith("transcast.")]:
        for name, value in list(vars(module).items()):
            if isinstance(value, torch._ops.OpOverload) and value.namespace == "transcast":
                op = value._schema.name.partition("::")[2]
                monkeypatch.setattr(module, name, replacement(op))
                found += 1
    assert found > 5


def emulated_op(name: str) -> Any:
    return getattr(EMU, name).default


@pytest.fixture
def on_emu(emu, monkeypatch) -> Iterator[Any]:
    """The layer calls the emulated ops."""
    emu.reset()
    emu.configure_cublaslt()
    redirect(monkeypatch, emulated_op)
    yield emu


class Compared:
    """The emulated op, whose results are held against those of the CPU op for the same arguments."""

    counts: dict[str, int]

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any) -> Any:
        results = emulated_op(self.name)(*args)
        self.counts[self.name] = self.counts.get(self.name, 0) + 1
        if self.name == "gemm":
            *operands, bias, epilogue, aux, out_dtype, _ = args
            y, pre = reference.gemm_fp64(*operands, bias, epilogue, aux, out_dtype)
            bound, _ = gemm_bound(*operands, bias, epilogue, y, pre, out_dtype)
            assert_within(results, y, bound, "gemm")
            return results
        expected = getattr(CPU, self.name).default(*args)
        names = [value.name for value in getattr(CPU, self.name).default._schema.returns]
        for name, got, want in zip(names, results, expected, strict=True):
            assert_same_bytes(got, want, f"{self.name} {name}")
        return results


# --- the demo's model -----------------------------------------------------------------------------

ARGS = Namespace(batch=2, seq=24, device=torch.device("cpu"), dtype="fp32", lr=1e-2, seed=0, steps=3)


def losses_of_training(dtype: str) -> list[float]:
    args = Namespace(**{**vars(ARGS), "dtype": dtype})
    torch.manual_seed(args.seed)
    model = tc.convert(train_lm.Decoder(32, 2, 2, args.seq), recipe="tensorwise")
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    text = (torch.arange(4096) * 7 % 61).to(torch.uint8)
    losses = []
    for batch in train_lm.training_batches(text, args):
        loss = train_lm.loss_of(model, batch, args)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_three_training_steps_as_on_the_cpu(emu, monkeypatch, dtype):
    """Each cast has the CPU's bytes and each product is within its bound; so are the losses, in effect.

    Products differ in the last bits of FP32 (or one of BF16), and a cast now and then turns that into another
    code, a sixteenth of one value among thousands.
    """
    expected = losses_of_training(dtype)
    Compared.counts = {}
    with monkeypatch.context() as patch:
        redirect(patch, Compared)
        got = losses_of_training(dtype)
    assert Compared.counts["gemm"] == 3 * 3 * 8  # steps, products, layers
    assert Compared.counts["quantize_transpose"] == 3 * 3 * 8
    assert expected[2] < expected[0]
    assert got == pytest.approx(expected, rel=1e-4 if dtype == "fp32" else 1e-3)


# --- launches -------------------------------------------------------------------------------------


def quantize_launches(emu, op: str, x: Tensor, fmt: torch.dtype = E4M3) -> list[str]:
    """What one raw op launches for ``x``."""
    return kernels_of(emu, lambda: getattr(EMU, op)(x, fmt, False, 0))


TOKENS, K, N = 48, 64, 32


def layer_and_input(dtype: torch.dtype, *, bias: bool = True):
    layer = layer_like(data(N, K, seed=1, dtype=dtype), data(N, seed=2, dtype=dtype) if bias else None)
    return layer, data(TOKENS, K, seed=3, dtype=dtype), data(TOKENS, N, seed=4, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_a_forward_with_a_cached_weight_is_one_cast_and_one_gemm(on_emu, dtype):
    layer, x, _ = layer_and_input(dtype)
    with torch.no_grad(), tc.cached_weights(layer):
        layer(x)
        assert kernels_of(on_emu, lambda: layer(x)) == [*quantize_launches(on_emu, "quantize", x), "gemm"]
    with tc.cached_weights(layer):
        layer(x)
        launched = kernels_of(on_emu, lambda: layer(x))
    assert launched == [*quantize_launches(on_emu, "quantize_transpose", x), "gemm"]


def autocast_step(x_dtype: torch.dtype, *, bias: bool) -> tuple[Callable[[], Tensor], Tensor, Tensor]:
    """The usual mixed precision: FP32 parameters, BF16 outputs; forward, x and the gradient of y."""
    layer, _, grad = layer_and_input(torch.float32, bias=bias)
    x = data(TOKENS, K, seed=3, dtype=x_dtype)

    def forward() -> Tensor:
        layer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x.detach().requires_grad_())

    return forward, x, grad.bfloat16()


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16], ids=["x fp32", "x bf16"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_a_step_under_autocast(on_emu, x_dtype, bias):
    """An FP32 bias costs one kernel, which rounds it to what cuBLASLt takes beside a BF16 output."""
    forward, x, grad = autocast_step(x_dtype, bias=bias)
    weight = data(N, K, seed=1)
    expected = quantize_launches(on_emu, "quantize_transpose", x)
    expected += quantize_launches(on_emu, "quantize_transpose", weight)
    assert kernels_of(on_emu, forward) == [*expected, *(["bias_kernel"] if bias else []), "gemm"]
    y = forward()
    cast = "quantize_transpose_dbias" if bias else "quantize_transpose"
    expected = quantize_launches(on_emu, cast, grad, torch.float8_e5m2)
    assert kernels_of(on_emu, lambda: y.backward(grad)) == [*expected, "gemm", "gemm"]


class TorchOps(TorchDispatchMode):
    """Counts torch's own ops: each is a launch or more on a GPU, which the emulator does not see."""

    FREE = ("detach", "alias", "view")  # no data is touched

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.partition("::")[2]
        if func.namespace == "aten" and name not in self.FREE:
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


def torch_ops_of(function: Callable[[], Any]) -> Counter[str]:
    with TorchOps() as ops:
        function()
    return ops.calls


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_a_step_has_no_op_of_torch_but_the_cast_of_a_16_bit_dbias(on_emu, dtype, bias):
    """dbias is summed in FP32; a bias of 16 bits has a gradient of 16 bits."""
    layer, x, grad = layer_and_input(dtype, bias=bias)
    x.requires_grad_()
    assert torch_ops_of(lambda: layer(x).backward(grad)) == (
        {"_to_copy": 1} if bias and dtype != torch.float32 else {}
    )


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16], ids=["x fp32", "x bf16"])
def test_a_step_under_autocast_has_no_op_of_torch(on_emu, x_dtype):
    forward, _, grad = autocast_step(x_dtype, bias=True)
    assert torch_ops_of(lambda: forward().backward(grad)) == {}


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("needs", ["both", "input", "weight"])
def test_a_backward_is_one_cast_and_the_gemms_that_are_needed(on_emu, needs, bias):
    layer, x, grad = layer_and_input(torch.bfloat16, bias=bias)
    layer.weight.requires_grad_(needs != "input")
    y = layer(x.requires_grad_(needs != "weight"))
    cast = "quantize_transpose_dbias" if bias else "quantize" if needs == "input" else "quantize_transpose"
    expected = quantize_launches(on_emu, cast, grad, torch.float8_e5m2)
    launched = kernels_of(on_emu, lambda: y.backward(grad))
    assert launched == [*expected, *(["gemm"] * (2 if needs == "both" else 1))]


def test_a_step_has_the_plans_of_its_three_products_and_no_more(on_emu):
    """From the second step on nothing is built, copied or waited for."""
    layer, x, grad = layer_and_input(torch.bfloat16)

    def step():
        layer(x.detach().requires_grad_()).backward(grad)

    for _ in range(2):
        step()
    on_emu.configure_cublaslt()
    step()
    built = dict(on_emu.calls())
    for _ in range(3):
        step()
    after = on_emu.calls()
    assert after["cublasLtMatmul"] == built["cublasLtMatmul"] + 9
    for name in ("cudaStreamSynchronize", "cudaMalloc"):
        assert after.get(name) == built.get(name), name


@pytest.mark.parametrize("tokens", [1, 7, 17, 24])
def test_S1_any_number_of_tokens_needs_no_copy(on_emu, tokens):
    """Rows are free in forward and dgrad, and the transposed casts pad what wgrad sums over."""
    layer, _, _ = layer_and_input(torch.bfloat16)
    x = data(tokens, K, seed=5, dtype=torch.bfloat16).requires_grad_()
    grad = data(tokens, N, seed=6, dtype=torch.bfloat16)
    launched = kernels_of(on_emu, lambda: layer(x).backward(grad))
    assert launched.count("gemm") == 3
    assert not [name for name in launched if "pad" in name or "epilogue" in name]
