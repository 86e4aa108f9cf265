"""What the public ops return: tuples with names, pytrees for torch.compile."""

from typing import NamedTuple

from torch import Tensor


class Cast(NamedTuple):
    q: Tensor
    scale_inv: Tensor
    amax: Tensor


class CastTranspose(NamedTuple):
    q: Tensor
    scale_inv: Tensor
    q_t: Tensor
    amax: Tensor


class CastTransposeDbias(NamedTuple):
    q: Tensor
    scale_inv: Tensor
    q_t: Tensor
    dbias: Tensor
    amax: Tensor


class Quantized(NamedTuple):
    q: Tensor
    scale_inv: Tensor


class QuantizedTranspose(NamedTuple):
    q: Tensor
    scale_inv: Tensor
    q_t: Tensor
    scale_inv_t: Tensor


class QuantizedTransposeDbias(NamedTuple):
    q: Tensor
    scale_inv: Tensor
    q_t: Tensor
    scale_inv_t: Tensor
    dbias: Tensor


class GemmFp8(NamedTuple):
    q: Tensor
    scale_inv: Tensor
    amax: Tensor
