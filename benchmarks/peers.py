"""What others offer for the same work: plain torch, torch.compile, torch._scaled_mm, torchao."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from timing import Contender
from torch import Tensor, nn

# --- plain torch, with the bytes of the ops: also what torch.compile is given -------------------------------


def scale_of(amax: Tensor, fmt: torch.dtype) -> Tensor:
    return torch.finfo(fmt).max / amax.float()


def saturated(x: Tensor, scale: Tensor, fmt: torch.dtype) -> Tensor:
    """FP8 of an FP32 product: one rounding. torch's own cast saturates only in some versions and formats."""
    largest = torch.finfo(fmt).max
    return (x.float() * scale).clamp(-largest, largest).to(fmt)


def saturated_16_bit(x: Tensor, scale: Tensor, fmt: torch.dtype) -> Tensor:
    """As often written: a scale without dimensions leaves the product in x's dtype: two roundings."""
    largest = torch.finfo(fmt).max
    return (x * scale).clamp(-largest, largest).to(fmt)


def amax(x: Tensor) -> Tensor:
    return x.abs().max()


def cast(x: Tensor, scale: Tensor, fmt: torch.dtype, to_fp8: Callable = saturated) -> tuple[Tensor, ...]:
    return to_fp8(x, scale, fmt), 1 / scale, x.abs().max()


def cast_transpose(
    x: Tensor, scale: Tensor, fmt: torch.dtype, to_fp8: Callable = saturated
) -> tuple[Tensor, ...]:
    q, scale_inv, largest = cast(x, scale, fmt, to_fp8)
    return q, scale_inv, q.t().contiguous(), largest


def quantize(x: Tensor, fmt: torch.dtype, to_fp8: Callable = saturated) -> tuple[Tensor, ...]:
    scale = scale_of(x.abs().max(), fmt)
    return to_fp8(x, scale, fmt), 1 / scale


def quantize_transpose(x: Tensor, fmt: torch.dtype, to_fp8: Callable = saturated) -> tuple[Tensor, ...]:
    q, scale_inv = quantize(x, fmt, to_fp8)
    return q, scale_inv, q.t().contiguous(), scale_inv


def act_quantize_transpose(x: Tensor, up: Tensor, fmt: torch.dtype) -> tuple[Tensor, ...]:
    """swiglu in FP32, as ours; its last bits are those of torch's sigmoid."""
    return quantize_transpose(torch.nn.functional.silu(x.float()) * up.float(), fmt)


def dact_quantize_transpose_dbias(g: Tensor, x: Tensor, up: Tensor, fmt: torch.dtype) -> tuple[Tensor, ...]:
    g, x, up = g.float(), x.float(), up.float()
    s = torch.sigmoid(x)
    gradient = torch.cat([g * (s * (1 + x * (1 - s))) * up, g * (x * s)], dim=-1)
    return *quantize_transpose(gradient, fmt), gradient.sum(dim=0)


def dequantize(q: Tensor, scale_inv: Tensor, dtype: torch.dtype) -> Tensor:
    return (q.float() * scale_inv).to(dtype)


# --- contenders ---------------------------------------------------------------------------------------------


def eager(fn: Callable, *args: object, name: str = "eager") -> Contender:
    return Contender(name, lambda: fn(*args))


def compiled(fn: Callable, *args: object) -> Contender:
    """Inductor in its default mode; the compilation happens in the warm-up call, outside of what is timed."""
    run = torch.compile(fn, dynamic=False)
    return Contender("compile", lambda: run(*args))


@contextmanager
def without_onednn() -> Iterator[None]:
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


@functools.cache
def onednn_helps() -> bool:
    """Whether torch._scaled_mm is clearly faster here through oneDNN than through torch's own decoding.

    On CPUs with AMX torch hands it to oneDNN, whose reference loops can take a thousand times as long, and
    which can fail where its instruction set is limited. The peer gets the better of the two, and so does
    torchao, which calls it. On other CPUs oneDNN has no part in it.
    """
    a, one = torch.zeros(128, 128, dtype=torch.float8_e4m3fn), torch.ones(())

    def call() -> Tensor:
        return torch._scaled_mm(a, a.t(), one, one, out_dtype=torch.float32)

    through_onednn, without = Contender("on", call), Contender("off", call, without_onednn)
    try:
        return 2 * min(through_onednn.sample(1) for _ in range(5)) < min(without.sample(1) for _ in range(5))
    except RuntimeError:
        return False


def through_scaled_mm(name: str, call: Callable[[], object], device: torch.device) -> Contender:
    if device.type != "cpu":
        return Contender(name, call)
    if onednn_helps():
        return Contender(name, call, note="through oneDNN, the faster way here")
    return Contender(name, call, without_onednn, note="without oneDNN, the faster way here")


def scaled_mm(
    a: Tensor,
    b: Tensor,
    a_scale_inv: Tensor,
    b_scale_inv: Tensor,
    out_dtype: torch.dtype,
    fast_accum: bool = False,
) -> Contender:
    def call() -> Tensor:
        return torch._scaled_mm(
            a, b.t(), a_scale_inv, b_scale_inv, out_dtype=out_dtype, use_fast_accum=fast_accum
        )

    return through_scaled_mm("_scaled_mm", call, a.device)


def _torchao(module: str) -> object:
    """torchao is optional: what it lacks, or that it is not there, becomes the reason of a missing peer."""
    return importlib.import_module(f"torchao.float8{module}")


def missing(name: str, error: Exception) -> Contender:
    return Contender(name, None, missing=f"{type(error).__name__}: {error}")


def torchao_quantize(x: Tensor, fmt: torch.dtype) -> Contender:
    try:
        to_float8 = _torchao(".float8_scaling_utils").hp_tensor_to_float8_dynamic
        config = _torchao(".float8_training_tensor").LinearMMConfig()
    except (ImportError, AttributeError) as error:
        return missing("torchao", error)
    return Contender("torchao", lambda: to_float8(x, fmt, config))


def torchao_linear(layer: nn.Linear, step: Callable[[nn.Module], None], compile_it: bool) -> Contender:
    """Tensorwise Float8Linear with ``layer``'s weights; ``step`` runs a forward and backward of a module."""
    name = "torchao compile" if compile_it else "torchao"
    try:
        converted = _torchao("").convert_to_float8_training(nn.Sequential(layer))[0]
    except (ImportError, AttributeError) as error:
        return missing(name, error)
    run = torch.compile(converted, dynamic=False) if compile_it else converted
    return through_scaled_mm(name, lambda: step(run), layer.weight.device)
