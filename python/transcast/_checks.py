"""What the public wrappers check before an op is called, and tell torch after it has written.

The ops themselves refuse wrong dtypes, shapes and values; here is what their schemas would answer with an error of
torch's, and what only Python can see.
"""

import torch
from torch import Tensor
from torch.autograd import forward_ad

MAX_MARGIN = 64  # the ops', stated here too because an int beyond 64 bits does not reach them
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2), "must be float8_e4m3fn or float8_e5m2"
HIGH_PRECISION = (torch.float32, torch.bfloat16, torch.float16), "must be float32, bfloat16 or float16"
_DTYPES = (*FP8[0], *HIGH_PRECISION[0])
_OPTIONAL = ("bias", "aux", "out", "up")

_is_compiling = torch.compiler.is_compiling


def check_types(op: str, **arguments: tuple[object, type]) -> None:
    for name, (value, expected) in arguments.items():
        if type(value) is not expected:
            raise TypeError(f"transcast.{op}: {name} must be of type {expected.__name__}, got {type(value).__name__}")


def check_scaling(op: str, pow2: object, margin: object) -> None:
    if type(pow2) is not bool or type(margin) is not int:
        check_types(op, pow2=(pow2, bool), margin=(margin, int))
    if abs(margin) > MAX_MARGIN:
        raise ValueError(f"transcast.{op}: margin must be between -{MAX_MARGIN} and {MAX_MARGIN}, got {margin}")


def check(op: str, dtype: object = torch.float32, **tensors: object) -> None:
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"transcast.{op}: dtype must be a torch.dtype, got {type(dtype).__name__}")
    if dtype not in _DTYPES:  # Some others, quint8 for one, do not reach the op, which refuses the rest.
        raise _not_a_dtype_of(op, dtype)
    grad = torch.is_grad_enabled()
    traced = _is_compiling()  # Dynamo refuses code that reads a layout in a backward.
    for name, value in tensors.items():
        if value is None and name in _OPTIONAL:
            continue
        if not isinstance(value, Tensor):
            raise TypeError(f"transcast.{op}: {name} must be a Tensor, got {type(value).__name__}")
        dense = traced or (
            value.layout is torch.strided and not value.is_quantized and not value.is_nested
        )
        # Not by device.type, which takes ten times as long. Meta tensors give meta tensors.
        if not (dense and (value.is_cpu or value.is_cuda or value.is_meta)):
            raise _not_dense(op, name, value)
        if grad and value.requires_grad:
            raise RuntimeError(
                f"transcast.{op} has no autograd, and {name} requires grad: use transcast.linear, or call it inside "
                "a torch.autograd.Function of your own (or under torch.no_grad())"
            )
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(value).tangent is not None:
            raise RuntimeError(f"transcast.{op} has no forward-mode derivative, and {name} carries a tangent")


def _not_a_dtype_of(op: str, dtype: torch.dtype) -> ValueError:
    _, expected = HIGH_PRECISION if op in ("dequantize", "gemm") else FP8
    argument = "out_dtype" if op == "gemm" else "dtype"
    return ValueError(f"transcast.{op}: {argument} {expected}, got {str(dtype).removeprefix('torch.')}")


def _not_dense(op: str, name: str, value: Tensor) -> ValueError:
    kinds = {"quantized": value.is_quantized, "nested": value.is_nested}
    kind = next((kind for kind, is_so in kinds.items() if is_so), str(value.layout))
    return ValueError(
        f"transcast.{op}: {name} must be a dense tensor on the CPU or a CUDA device, "
        f"got {kind} on {value.device}"
    )


def check_list(op: str, name: str, value: object) -> None:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"transcast.{op}: {name} must be a list of Tensors, got {type(value).__name__}")


def e8m0_bytes(scale_inv: object) -> object:
    """E8M0 scales cross ops as bytes."""
    is_e8m0 = isinstance(scale_inv, Tensor) and scale_inv.dtype == torch.float8_e8m0fnu
    return scale_inv.view(torch.uint8) if is_e8m0 else scale_inv


def written(*tensors: Tensor | None) -> None:
    # torch has to learn of writes that it did not make, or what it saved for backward is wrong without notice.
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version([t for t in tensors if t is not None and not t.is_inference()])
