"""Operands with a scale for each row or block; emulated on a device that multiplies them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import transcast as tc
from cases import DTYPES, E4M3, E5M2, FORMATS, fp8, fp8_integers, normal, scalar
from conftest import assert_same_bytes
from gemm_checks import check_gemm, check_gemm_fp8, check_gemm_out, outputs, pairs
from gemm_emu import DEVICES
from transcast import reference

ROWS, WIDE, SQUARE, MX = "row", "1x128", "128x128", "1x32 E8M0"
TOGETHER = [
    (ROWS, ROWS), (ROWS, "tensor"), ("tensor", ROWS), (WIDE, WIDE), (WIDE, SQUARE), (SQUARE, WIDE), (MX, MX),
]  # fmt: skip
together = pytest.mark.parametrize("kinds", TOGETHER, ids=["*".join(kinds) for kinds in TOGETHER])
# (M, N, K): one of all, all aligned, ragged against 4, 16, 32 and 128, and more than a CPU tile is deep.
SHAPES = [(1, 1, 1), (128, 256, 256), (8, 16, 48), (7, 15, 33), (130, 33, 129), (3, 140, 300), (5, 3, 2177)]


def up(n: int, size: int) -> int:
    return -(-n // size)


def shape_of(kind: str, rows: int, k: int) -> tuple[int, ...]:
    return {
        "tensor": (),
        ROWS: (rows, 1),
        WIDE: (rows, up(k, 128)),
        SQUARE: (up(rows, 128), up(k, 128)),
        MX: (rows, up(k, 32)),
    }[kind]


def scales(kind: str, rows: int, k: int, seed: int) -> Tensor:
    """Each a number of its own, within a factor of 64 of each other."""
    shape = shape_of(kind, rows, k)
    generator = torch.Generator().manual_seed(seed)
    if kind == MX:
        return torch.randint(116, 123, shape, generator=generator).to(torch.uint8)
    return torch.rand(shape, generator=generator) * 2.0**-5 + 2.0**-11


def operands(shape, kinds, pair=(E4M3, E4M3), make=fp8) -> list[Tensor]:
    m, n, k = shape
    scale_a, scale_b = scales(kinds[0], m, k, 1), scales(kinds[1], n, k, 2)
    smaller = {E5M2: 2.0**-8, E4M3: 1.0}  # random e5m2 codes reach 57344
    scaled = [s if s.dtype == torch.uint8 else s * smaller[fmt] for s, fmt in zip((scale_a, scale_b), pair)]
    return [make((m, k), pair[0], 1), make((n, k), pair[1], 2), *scaled]


@pytest.fixture
def on(backend, request):
    """The backend, on a device that multiplies these scales."""
    if backend.name == "emu":
        needs_mx = "kinds" in request.fixturenames and MX in request.getfixturevalue("kinds")
        request.getfixturevalue("emu").set_device(DEVICES["10.0" if needs_mx else "9.0"])
    return backend


@together
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_product_meets_the_bound(on, shape, kinds):
    check_gemm(on, operands(shape, kinds))


@together
@outputs
@pairs
def test_outputs_bias_and_formats(on, kinds, pair, out_dtype):
    shape = (9, 32, 160)
    args = operands(shape, kinds, pair)
    bias = normal((32,), torch.float16 if out_dtype == torch.float16 else torch.bfloat16)
    check_gemm(on, args, None, "none", None, out_dtype)
    check_gemm(on, args, bias, "none", None, out_dtype)


@together
def test_fast_accum_is_a_permission(on, kinds):
    check_gemm(on, operands((12, 32, 160), kinds), fast_accum=True)


@together
def test_epilogues(on, kinds):
    m, n, k = shape = (12, 32, 160)
    args, bias = operands(shape, kinds), normal((n,), torch.float32)
    for epilogue in ("relu", "gelu_tanh"):
        check_gemm(on, args, bias, epilogue)
        check_gemm_fp8(on, args, scalar(0.37), bias, epilogue, E4M3)
    check_gemm(on, args, None, "dgelu", normal((m, n), torch.bfloat16), torch.bfloat16)
    aux = torch.empty(m, n, dtype=torch.bfloat16)
    check_gemm_out(on, args, torch.empty(m, n, dtype=torch.bfloat16), bias, "gelu_tanh", aux_out=aux)


@together
@pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
def test_fp8_output(on, kinds, dtype):
    check_gemm_fp8(on, operands((13, 40, 200), kinds), scalar(0.37), None, "none", dtype)


@together
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_accumulation(on, kinds, dtype):
    out = normal((12, 32), DTYPES[dtype])
    check_gemm_out(on, operands((12, 32, 160), kinds), out, accumulate=True)


@together
def test_exact_sums_have_the_reference_s_bytes(on, kinds):
    """Small integers and powers of two: each scale is where it belongs, on every backend alike."""
    args = operands((132, 144, 288), kinds, make=fp8_integers)
    args[2:] = [s if s.dtype == torch.uint8 else 2.0 ** torch.round(torch.log2(s)) for s in args[2:]]
    got = on.run("gemm", *args, None, "none", None, torch.float32, False)
    want = reference.gemm(*args, None, "none", None, torch.float32, False)
    assert_same_bytes(got + 0.0, want + 0.0, "gemm")


def padded(scale: Tensor) -> Tensor:
    rows, columns = scale.shape
    wide = scale.new_zeros(rows, up(columns, 4) * 4)
    wide[:, :columns] = scale
    return wide[:, :columns]


LAYOUTS = {
    "transposed": lambda s: s.t().contiguous().t(),
    "rows apart": padded,
    "every other": lambda s: s.repeat_interleave(2, dim=1)[:, ::2],
    "not 16-byte aligned": lambda s: torch.cat((s.flatten()[:1], s.flatten()))[1:].view(s.shape),
    "expanded": lambda s: s[:1, :1].expand(s.shape),
}


@together
@pytest.mark.parametrize("layout", LAYOUTS)
def test_S3_scales_of_any_strides(on, kinds, layout):
    args = operands((132, 144, 640), kinds)
    strided = [s if s.dim() == 0 else LAYOUTS[layout](s) for s in args[2:]]
    a, b, *strided = (t.to(on.device) for t in (*args[:2], *strided))
    run = [
        on.ops.gemm(a, b, *some, None, "none", None, torch.float32, False).cpu()
        for some in (strided, [s.contiguous() for s in strided])
    ]
    assert_same_bytes(*run, layout)
    if layout != "expanded":
        check_gemm(on, args)


@together
def test_S6_8352_rows(on, kinds):
    """Neither operands nor scales are read past their end: what lies behind them are NaN."""
    m, n, k = shape = (8352, 16, 48) if on.name != "emu" else (1044, 16, 48)
    args = operands(shape, kinds)
    for i, one in enumerate(args):
        fill = torch.tensor([0xFF] if one.dtype == torch.uint8 else [math.nan]).to(one.dtype)
        args[i] = torch.cat((one.flatten(), fill.repeat(64)))[: one.numel()].view(one.shape)
    check_gemm(on, args)


@together
def test_V4_only_what_a_bad_scale_belongs_to_is_nan(on, kinds):
    m, n, k = shape = (130, 48, 160)
    for which in (0, 1):
        args = operands(shape, kinds, make=fp8_integers)
        if args[2 + which].dim() == 0:
            continue
        row = args[2 + which].shape[0] - 1
        args[2 + which][row, -1] = 255 if kinds[which] == MX else math.nan
        y = on.run("gemm", *args, None, "none", None, torch.float32, False)
        bad = torch.zeros(m, n, dtype=torch.bool)
        first = row * 128 if kinds[which] == SQUARE else row
        (bad if which == 0 else bad.t())[first:] = True
        assert torch.equal(torch.isnan(y), bad)


def test_V4_one_nan_in_a_row_stays_in_its_row(on):
    args = operands((20, 32, 64), (ROWS, ROWS))
    args[0].view(torch.uint8)[7, 3] = 0x7F
    y = on.run("gemm", *args, None, "none", None, torch.bfloat16, False)
    assert torch.isnan(y[7]).all() and not torch.isnan(y).any(dim=1)[torch.arange(20) != 7].any()


@together
def test_no_depth_gives_zeros_whatever_the_scales(on, kinds):
    a, b = torch.empty(5, 0).to(E4M3), torch.empty(7, 0).to(E4M3)
    sa, sb = (scales(kind, rows, 0, 1) for kind, rows in zip(kinds, (5, 7)))
    for scale in (sa, sb):
        scale.fill_(255 if scale.dtype == torch.uint8 else math.nan)
    y = on.run("gemm", a, b, sa, sb, None, "none", None, torch.float32, False)
    assert_same_bytes(y, torch.zeros(5, 7), "gemm")


@pytest.mark.parametrize("kinds", [(MX, MX)], ids=["1x32 E8M0*1x32 E8M0"])
def test_e8m0_is_a_power_of_two_or_nan(on, kinds):
    """Every code; literals of the format, not of the reference."""
    a = torch.ones(256, 32).to(E4M3)
    codes = torch.arange(256).to(torch.uint8).view(256, 1)
    args = [a, torch.eye(1, 32).to(E4M3), codes, torch.tensor([[127]], dtype=torch.uint8)]
    y = on.run("gemm", *args, None, "none", None, torch.float32, False).flatten()
    want = [2.0 ** (code - 127) for code in range(255)] + [math.nan]
    assert_same_bytes(y, torch.tensor(want, dtype=torch.float64).to(torch.float32), "gemm")


def test_e8m0_tensors_are_taken_as_such():
    args = operands((5, 6, 70), (MX, MX))
    viewed = [*args[:2], *(s.view(torch.float8_e8m0fnu) for s in args[2:])]
    for run in (
        lambda some: tc.gemm(*some, out_dtype=torch.float32),
        lambda some: tc.gemm_fp8(*some, out_scale=scalar(1.0)).q,
    ):
        assert_same_bytes(run(viewed), run(args), "gemm")


def test_scales_may_lie_beside_the_output(backend):
    a, b = (torch.ones(rows, 32, device=backend.device).to(E4M3) for rows in (8, 16))
    one = torch.ones(16, 1, device=backend.device)
    both = torch.ones(8, 17, device=backend.device)
    out = both[:, :16]
    backend.ops.gemm_out(a, b, both[:, 16:], one, None, "none", None, False, False, out, None)
    assert (out == 32).all() and (both[:, 16] == 1).all()
    with pytest.raises(ValueError, match="out must not share memory with a_scale_inv"):
        backend.ops.gemm_out(a, b, both[:, 15:16], one, None, "none", None, False, False, out, None)


# --- errors ---------------------------------------------------------------------------------------

WRONG = {
    "a column too many": (lambda a, b: (a.repeat(1, 2), b), "a_scale_inv must hold one float32 element"),
    "a row too many": (lambda a, b: (a, torch.cat((b, b))), r"b_scale_inv must hold .* row \(12, 1\)"),
    "three dims": (lambda a, b: (a.unsqueeze(0), b), "a_scale_inv must hold"),
    "float64": (lambda a, b: (a, b.double()), r"got float64 \(12, 3\)"),
    "bytes of another shape": (lambda a, b: (a.to(torch.uint8), b), r"1x32 block \(8, 10\); got uint8 \(8, 3\)"),
    "beside a scalar": (lambda a, b: (a, scalar(1.0)), r"must go with a_scale_inv.*got \(\) beside \(8, 3\)"),
    "beside rows": (lambda a, b: (a, b[:, :1]), r"must go with a_scale_inv.*got \(12, 1\) beside \(8, 3\)"),
    "beside E8M0": (lambda a, b: (scales(MX, 8, 300, 1), b), r"must go with a_scale_inv"),
}


@pytest.mark.parametrize("what", WRONG)
def test_scales_that_do_not_fit_are_refused(backend, what):
    change, message = WRONG[what]
    a, b, sa, sb = operands((8, 12, 300), (WIDE, WIDE))
    with pytest.raises(ValueError, match=message):
        backend.run("gemm", a, b, *change(sa, sb), None, "none", None, torch.float32, False)


def test_two_operands_with_square_blocks_are_refused(backend):
    args = operands((130, 140, 300), (SQUARE, SQUARE))
    with pytest.raises(ValueError, match="one of them 1x128"):
        backend.run("gemm", *args, None, "none", None, torch.float32, False)
