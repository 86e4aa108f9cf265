"""The public ops that cast an activation, or its gradient, in one pass; what all ops share is in ``ops.py``.

Activations:

- ``"gelu_tanh"``: ``x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3))``, GELU in tanh form.
- ``"silu"``: ``x sigmoid(x)``.
- ``"swiglu"``: ``silu(gate) * up``. With ``up=None`` x is (..., 2C), [gate | up] side by side; else x is the
  gate and ``up`` has its shape (..., C). For other activations ``up`` must be None.

They and their derivatives are computed in FP32 as a fixed sequence of IEEE operations: the same bits on every
device. Their errors, with u = 2^-24, are at most 7 u of the value for silu and 8 u |x| for gelu_tanh, whose
negative tail, small beside x, may thus be hundreds of u of its value away; 32 u and 128 u for the derivatives
(results below 1e-36 may become 0). The result stays FP32 until it is cast; it is never rounded to the dtype of
x. NaN gives NaN, and so does -Inf, as Inf times zero does.
"""

import torch
from torch import Tensor

from ._checks import check, check_scaling, check_types
from ._results import (
    Cast,
    CastTranspose,
    CastTransposeDbias,
    Quantized,
    QuantizedTranspose,
    QuantizedTransposeDbias,
)

_ops = torch.ops.transcast


def act_cast(x: Tensor, scale: Tensor, dtype: torch.dtype, *, act: str, up: Tensor | None = None) -> Cast:
    """``cast`` of an activation: ``q = fp8(act(x) * scale)``, one read of x.

    ``act`` is ``"gelu_tanh"``, ``"silu"`` or ``"swiglu"``: ``silu(x) * up``, or ``silu(gate) * up`` of x =
    [gate | up] if ``up`` is None. ``up`` has the dtype and shape of x. Returns ``q`` (shape of the
    activation), ``scale_inv`` (), ``amax`` () of the FP32 activation before scaling. Raises ValueError for an
    odd last dim of [gate | up], another activation, an ``up`` that does not fit.
    """
    check("act_cast", dtype, x=x, scale=scale, up=up)
    check_types("act_cast", act=(act, str))
    return Cast(*_ops.act_cast(x, scale, dtype, act, up))


def act_cast_transpose(
    x: Tensor, scale: Tensor, dtype: torch.dtype, *, act: str, up: Tensor | None = None
) -> CastTranspose:
    """``act_cast`` in both orientations from one read of x.

    Returns ``q`` (shape of the activation, (..., C)), ``scale_inv`` (), ``q_t`` (C, ceil16(R)), ``amax`` ().
    """
    check("act_cast_transpose", dtype, x=x, scale=scale, up=up)
    check_types("act_cast_transpose", act=(act, str))
    return CastTranspose(*_ops.act_cast_transpose(x, scale, dtype, act, up))


def act_quantize(
    x: Tensor, dtype: torch.dtype, *, act: str, up: Tensor | None = None, pow2: bool = False, margin: int = 0
) -> Quantized:
    """``quantize`` of an activation: the scale comes from the amax of ``act(x)``, in FP32.

    ``act`` and ``up`` as in ``act_cast``, ``pow2`` and ``margin`` as in ``quantize``. The activation is
    computed twice, once for its amax; it is never stored. Returns ``q`` (shape of the activation) and
    ``scale_inv`` ().
    """
    check("act_quantize", dtype, x=x, up=up)
    check_types("act_quantize", act=(act, str))
    check_scaling("act_quantize", pow2, margin)
    return Quantized(*_ops.act_quantize(x, dtype, act, up, pow2, margin))


def act_quantize_transpose(
    x: Tensor, dtype: torch.dtype, *, act: str, up: Tensor | None = None, pow2: bool = False, margin: int = 0
) -> QuantizedTranspose:
    """``act_quantize`` in both orientations: the input of the layer behind an activation, in training.

    Returns ``q`` (shape of the activation, (..., C)), ``scale_inv`` (), ``q_t`` (C, ceil16(R)),
    ``scale_inv_t`` ().
    """
    check("act_quantize_transpose", dtype, x=x, up=up)
    check_types("act_quantize_transpose", act=(act, str))
    check_scaling("act_quantize_transpose", pow2, margin)
    return QuantizedTranspose(*_ops.act_quantize_transpose(x, dtype, act, up, pow2, margin))


def dact_cast_transpose_dbias(
    g: Tensor, x: Tensor, scale: Tensor, dtype: torch.dtype, *, act: str, up: Tensor | None = None
) -> CastTransposeDbias:
    """``cast_transpose_dbias`` of an activation's gradient, with a given scale.

    ``x`` and ``up`` are what the activation was given, ``g`` (shape of its value, dtype of x) the gradient
    that arrives there. What is cast is ``g * act'(x)``, shape of x; for ``"swiglu"`` [dgate | dup], (...,
    2C), whether ``up`` was given or not: ``dgate = (g * silu'(gate)) * up``, ``dup = g * silu(gate)``. In
    FP32, as is ``amax``.

    With C' columns in what is cast: returns ``q`` (..., C'), ``scale_inv`` (), ``q_t`` (C', ceil16(R)),
    ``dbias`` (C',) FP32, its column sums before scaling, ``amax`` (). x needs at least one dim.
    """
    check("dact_cast_transpose_dbias", dtype, g=g, x=x, scale=scale, up=up)
    check_types("dact_cast_transpose_dbias", act=(act, str))
    return CastTransposeDbias(*_ops.dact_cast_transpose_dbias(g, x, scale, dtype, act, up))


def dact_quantize_transpose_dbias(
    g: Tensor,
    x: Tensor,
    dtype: torch.dtype,
    *,
    act: str,
    up: Tensor | None = None,
    pow2: bool = False,
    margin: int = 0,
) -> QuantizedTransposeDbias:
    """``dact_cast_transpose_dbias`` with current scaling: the scale comes from the gradient's own amax.

    Returns ``q`` (..., C'), ``scale_inv`` (), ``q_t`` (C', ceil16(R)), ``scale_inv_t`` (), ``dbias`` (C',).
    """
    check("dact_quantize_transpose_dbias", dtype, g=g, x=x, up=up)
    check_types("dact_quantize_transpose_dbias", act=(act, str))
    check_scaling("dact_quantize_transpose_dbias", pow2, margin)
    return QuantizedTransposeDbias(*_ops.dact_quantize_transpose_dbias(g, x, dtype, act, up, pow2, margin))
