"""What the probe asks cuBLASLt: every combination of interest, by section."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from lt_query import EPILOGUES, SCALES, Query

PAIRS = [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e5m2")]
LAYOUTS = ["TN", "NN", "NT", "TT"]
OUTPUTS = ["bf16", "f16", "f32", "e4m3"]
SCALE_PAIRS = [
    ("scalar", "scalar"),
    ("outer_vec", "outer_vec"),
    ("vec128", "vec128"),
    ("vec128", "blk128x128"),
]
SCALE_PAIRS += [("blk128x128", "vec128"), ("vec32_ue8m0", "vec32_ue8m0")]
Asked = tuple[str, Query]
BLOCKS_SINCE = 120900  # the library with scales of rows and of 128 columns


def is_fp8(type_: str) -> bool:
    return type_ in ("e4m3", "e5m2")


def types() -> Iterator[Asked]:
    for (a, b), trans, d in product(PAIRS, LAYOUTS, [*OUTPUTS, "e5m2"]):
        yield "types and layouts", Query(a=a, b=b, trans=trans, d=d, dscale=is_fp8(d))
    for (a, b), fast, d in product(PAIRS, (0, 1), ("bf16", "f32")):
        yield "fast accumulation", Query(a=a, b=b, d=d, fast=fast)
    for c, d, a in product(OUTPUTS, OUTPUTS, ("e4m3", "e5m2")):
        yield "type of C", Query(a=a, c=c, d=d, dscale=is_fp8(d))


def epilogues() -> Iterator[Asked]:
    for (a, b), epi, d in product(PAIRS[:3], EPILOGUES, OUTPUTS):
        base = Query(epi=epi)
        for bias in (None, "bf16", "f16", "f32") if base.has_bias else (None,):
            for aux in (None, "bf16", "f16", "e4m3") if base.has_aux else (None,):
                yield "epilogues", Query(a=a, b=b, epi=epi, d=d, bias=bias, aux=aux, dscale=is_fp8(d))
    for trans, epi in product(LAYOUTS[1:], EPILOGUES):
        yield (
            "epilogues off TN",
            Query(epi=epi, trans=trans, bias="bf16" if Query(epi=epi).has_bias else None),
        )


def scale_modes() -> Iterator[Asked]:
    for sa, sb, d, trans in product(SCALES, SCALES, OUTPUTS, ("TN", "NN")):
        yield "scale modes", Query(sa=sa, sb=sb, d=d, trans=trans)
    for sa, sb in SCALE_PAIRS:
        for fast in (0, 1):
            yield "scale modes, fast accumulation", Query(sa=sa, sb=sb, fast=fast)
        for epi in EPILOGUES:
            yield "scale modes, epilogues", Query(sa=sa, sb=sb, epi=epi)
        for a, b in PAIRS:
            yield "scale modes, types", Query(sa=sa, sb=sb, a=a, b=b)
    yield "E8M0 output", Query(sa="vec32_ue8m0", sb="vec32_ue8m0", d="e4m3", dout=True)
    for (a, b), d, dscale, amax in product(
        PAIRS[:3], ("e4m3", "e5m2", "bf16", "f32"), (False, True), (False, True)
    ):
        yield "scale and amax of D", Query(a=a, b=b, d=d, dscale=dscale, amax=amax)


def shapes() -> Iterator[Asked]:
    sides = (16, 8, 1, 20, 24)
    for m, n, k, d in product((256, *sides), (384, *sides), (512, 16, 24, 20, 8), ("bf16", "f32", "e4m3")):
        yield "shapes", Query(m=m, n=n, k=k, d=d, dscale=is_fp8(d))
    ragged = [(16, 384, 512), (1, 384, 512), (8, 384, 512), (256, 16, 512), (256, 1, 512)]
    ragged += [(256, 384, 48), (256, 384, 160), (256, 384, 192), (272, 400, 512)]
    for (sa, sb), (m, n, k) in product([SCALE_PAIRS[i] for i in (1, 2, 3, 5)], ragged):
        yield "shapes, scale modes", Query(sa=sa, sb=sb, m=m, n=n, k=k)


def memory() -> Iterator[Asked]:
    sizes = [(256, 384, 512), (128, 128, 16384), (4096, 4096, 4096)]
    for ws, (m, n, k) in product((0, 4 << 20, 32 << 20, 64 << 20), sizes):
        yield "workspace", Query(ws=ws, m=m, n=n, k=k)
    for align in (256, 32, 16, 8, 4, 1):
        yield "alignment of matrices", Query(align=align)
    for align, bias in product((256, 16, 8, 4, 2, 1), ("bf16", "f16")):
        yield "alignment of the bias", Query(epi="bias", bias=bias, bias_align=align, d=bias)


def queries() -> Iterator[Asked]:
    for section in (types, epilogues, scale_modes, shapes, memory):
        yield from section()


def non_finite() -> Iterator[Query]:
    """What lets a NaN through, or does not: of RELU and amax the documentation says nothing."""
    for epi, d in product(("default", "relu", "relu_bias"), ("bf16", "f32", "e4m3")):
        fp8 = is_fp8(d)
        yield Query(
            m=32, n=32, k=32, d=d, epi=epi, bias="bf16" if "bias" in epi else None, dscale=fp8, amax=fp8
        )


def native(query: Query, capability: str, library: int) -> bool:
    """Whether transcast asks for it in one call: the support table of csrc/cuda/gemm_support.cpp."""
    q = query
    if (q.sa, q.sb) != ("scalar", "scalar"):
        device = capability == "9.0" and library >= BLOCKS_SINCE
        return device and q.epi in ("default", "bias") and q.d in ("f32", "bf16", "f16")
    if q.epi in ("default", "bias"):
        return q.d != "e5m2" or q.a != q.b
    if q.epi in ("gelu", "gelu_bias"):
        return q.d in ("bf16", "f16")
    return q.epi in ("gelu_aux", "dgelu") and (q.d, q.aux) == ("bf16", "bf16")


def ours() -> Iterator[tuple[Query, float]]:
    """What transcast has cuBLASLt compute, or might, with its beta: these products are run."""
    kinds = [
        "default",
        "bias",
        "relu",
        "relu_bias",
        "gelu",
        "gelu_bias",
        "gelu_aux",
        "gelu_aux_bias",
        "dgelu",
    ]
    for (a, b), epi, d in product(PAIRS[:3], kinds, [*OUTPUTS, "e5m2"]):
        fp8, q = is_fp8(d), Query(epi=epi)
        bias = ("f16" if d == "f16" else "bf16") if q.has_bias else None
        aux = ("f16" if d == "f16" else "bf16") if q.has_aux else None
        yield Query(a=a, b=b, d=d, epi=epi, bias=bias, aux=aux, dscale=fp8, amax=fp8), 0.0
    for (a, b), d, fast in product(PAIRS[:3], ("f32", "bf16"), (0, 1)):
        yield Query(a=a, b=b, d=d, fast=fast), 0.0
        yield Query(a=a, b=b, d=d, fast=fast), 1.0
    for (sa, sb), d, epi in product(SCALE_PAIRS[1:5], ("bf16", "f32"), ("default", "bias")):
        yield Query(sa=sa, sb=sb, d=d, epi=epi, bias="bf16" if epi == "bias" else None), 0.0
    for m, n, k in [(16, 16, 16), (272, 400, 528), (4096, 17, 4096), (4096, 4096, 4096)]:
        yield Query(m=m, n=n, k=k), 0.0
