"""What can be asked of cuBLASLt, in its own column-major terms: D[M, N] = op(A)[M, K] . op(B)[K, N]."""

from __future__ import annotations

from dataclasses import dataclass

# Numbers of library_types.h and cublasLt.h.
TYPES = {"f32": 0, "f16": 2, "bf16": 14, "e4m3": 28, "e5m2": 29}
BYTES = {"f32": 4, "f16": 2, "bf16": 2, "e4m3": 1, "e5m2": 1}
EPILOGUES = {"default": 1, "relu": 2, "bias": 4, "relu_bias": 6, "gelu": 32, "gelu_bias": 36, "gelu_aux": 160}
EPILOGUES |= {"gelu_aux_bias": 164, "dgelu": 192, "dgelu_bgrad": 208, "bgrada": 256, "bgradb": 512}
SCALES = {"scalar": 0, "vec32_ue8m0": 2, "outer_vec": 3, "vec128": 4, "blk128x128": 5}
MADE_UP = 0x7F0000000000  # an aligned address that nobody follows: a heuristic looks at its value only


@dataclass(frozen=True)
class Query:
    """A product to ask about. ``c`` and ``aux`` are those that the library takes by default where None."""

    a: str = "e4m3"
    b: str = "e4m3"
    d: str = "bf16"
    c: str | None = None
    trans: str = "TN"
    epi: str = "default"
    bias: str | None = None
    aux: str | None = None
    fast: int = 0
    sa: str = "scalar"
    sb: str = "scalar"
    dscale: bool = False
    dout: bool = False
    amax: bool = False
    m: int = 256
    n: int = 384
    k: int = 512
    ws: int = 32 << 20
    align: int = 256
    bias_align: int = 256

    @property
    def c_type(self) -> str:
        return self.c or ("bf16" if BYTES[self.d] == 1 else self.d)

    @property
    def has_bias(self) -> bool:
        return "bias" in self.epi or "bgrad" in self.epi

    @property
    def has_aux(self) -> bool:
        return "gelu" in self.epi and self.epi not in ("gelu", "gelu_bias")

    @property
    def aux_stride(self) -> int:
        return (self.m + 15) // 16 * 16


@dataclass
class Pointers:
    """Addresses of what a product reads and writes."""

    a_scale: int = MADE_UP
    b_scale: int = MADE_UP
    bias: int = MADE_UP
    aux: int = MADE_UP
    d_scale: int = MADE_UP
    amax: int = MADE_UP
