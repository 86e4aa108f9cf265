"""The ways of a GEMM: one cublasLtMatmul, or an FP32 product and a kernel behind it; and what is copied."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import transcast as tc
from cases import DTYPES, E4M3, FORMATS, fp8_integers, normal, scalar
from conftest import assert_same_bytes, assert_within
from gemm_checks import PAIRS, check_gemm, check_gemm_fp8, check_gemm_out, operands, pairs
from gemm_emu import ALL_BUT_PLAIN, DEVICES, EMU, OPS, SHAPE, fresh, gemm, kernels_of, shifted  # noqa: F401
from test_gemm_scales import ROWS, SQUARE, TOGETHER, WIDE
from test_gemm_scales import operands as scaled_operands
from transcast import _library, reference


def way_of(emu, arch, pair, out_dtype, epilogue, bias, aux, scalings=("tensor", "tensor")) -> str:
    """native or fallback, as the support table has it."""
    dtypes = (*pair, out_dtype, getattr(aux, "dtype", ""))
    a, b, out, aux_dtype = (str(dtype).removeprefix("torch.") for dtype in dtypes)
    number = int(arch.replace(".", ""))
    extras = epilogue, bias is not None, aux is not None, aux_dtype
    return emu.gemm_support(a, b, *extras, out, *scalings, number, 130000)


def kinds_of_products():
    """(output dtype, epilogue, bias, aux): all that the ops take."""
    m, n, _ = SHAPE
    for out_dtype in (*DTYPES.values(), *FORMATS.values()):
        bias_dtype = torch.float16 if out_dtype == torch.float16 else torch.bfloat16
        for epilogue in ("none", "relu", "gelu_tanh", "dgelu"):
            auxes = [torch.zeros(m, n, dtype=dtype) for dtype in DTYPES.values()]
            if epilogue == "dgelu" and out_dtype in FORMATS.values():
                continue
            choices = {"gelu_tanh": [None, *auxes], "dgelu": auxes}.get(epilogue, [None])
            for aux in choices:
                for bias in (None, torch.ones(n, dtype=bias_dtype)):
                    yield out_dtype, epilogue, bias, aux


@pytest.mark.parametrize("arch", DEVICES)
@pairs
def test_the_support_table_is_what_happens(emu, arch, pair):
    """Native: one GEMM and, for FP8, what completes it; else a GEMM and one epilogue kernel."""
    emu.set_device(DEVICES[arch])
    args, (m, n, _) = operands(SHAPE, pair), SHAPE
    for out_dtype, epilogue, bias, aux in kinds_of_products():
        is_fp8 = out_dtype in FORMATS.values()

        def run():
            if is_fp8:
                return OPS.gemm_fp8(*args, scalar(1.0), bias, epilogue, out_dtype, False, aux)
            out = torch.zeros(m, n, dtype=out_dtype)
            read, written = (aux, None) if epilogue == "dgelu" else (None, aux)
            return OPS.gemm_out(*args, bias, epilogue, read, False, False, out, written)

        expected = {
            ("native", False): ["gemm"],
            ("native", True): ["gemm", "finish_fp8_kernel"],
            ("fallback", False): ["gemm", "epilogue_kernel"],
            ("fallback", True): ["gemm", "epilogue_fp8_kernel"],
        }[way_of(emu, arch, pair, out_dtype, epilogue, bias, aux), is_fp8]
        case = (out_dtype, epilogue, bias is not None, getattr(aux, "dtype", None))
        assert kernels_of(emu, run) == expected, case
    assert emu.cublaslt_refusals() == []


@pytest.mark.parametrize("refused", [set(), ALL_BUT_PLAIN], ids=["native", "fallback"])
@pytest.mark.parametrize("out_dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("epilogue", ["none", "relu", "gelu_tanh"])
@pairs
def test_both_ways_meet_the_bound(emu, refused, epilogue, out_dtype, pair):
    emu.configure_cublaslt(refuse_epilogues=refused)
    args, (m, n, _) = operands(SHAPE, pair), SHAPE
    dtype = torch.float16 if out_dtype == torch.float16 else torch.bfloat16
    bias = normal((n,), dtype)
    launched = kernels_of(emu, lambda: check_gemm(EMU, args, bias, epilogue, None, out_dtype))
    if refused:
        assert launched == ["gemm", "epilogue_kernel"]
    aux = torch.empty(m, n, dtype=out_dtype) if epilogue == "gelu_tanh" else None
    for with_bias in (None, bias):
        check_gemm_out(EMU, args, torch.empty(m, n, dtype=out_dtype), with_bias, epilogue, aux_out=aux)
    if epilogue == "none":
        check_gemm(EMU, args, None, "dgelu", normal((m, n), out_dtype), out_dtype)


@pytest.mark.parametrize("refused", [set(), ALL_BUT_PLAIN], ids=["native", "fallback"])
@pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("epilogue", ["none", "relu", "gelu_tanh"])
@pairs
def test_both_ways_meet_the_bound_of_fp8(emu, refused, epilogue, dtype, pair):
    emu.configure_cublaslt(refuse_epilogues=refused)
    bias = normal((SHAPE[1],), torch.bfloat16)
    check_gemm_fp8(EMU, operands(SHAPE, pair), scalar(0.37), bias, epilogue, dtype)


def test_native_and_fallback_agree_to_the_bit_where_sums_are_exact(emu):
    for pair in PAIRS:
        args = operands(SHAPE, pair, fp8_integers)
        for epilogue in ("none", "relu"):
            for out_dtype in DTYPES.values():
                half = out_dtype == torch.float16
                bias = torch.arange(SHAPE[1]).to(torch.float16 if half else torch.bfloat16)
                results = []
                for refused in (set(), ALL_BUT_PLAIN):
                    emu.configure_cublaslt(refuse_epilogues=refused)
                    results.append(gemm(args, bias, epilogue, None, out_dtype))
                assert_same_bytes(results[0] + 0.0, results[1] + 0.0, f"{epilogue} {out_dtype}")


COPIES = {
    "aligned": (lambda a: a, []),
    "rows apart": (lambda a: torch.cat((a, a), dim=1)[:, : a.shape[1]], []),
    "16 bytes further": (lambda a: shifted(a, 16), []),
    "one byte further": (lambda a: shifted(a, 1), ["pad_kernel"]),
    "rows apart by 49": (lambda a: torch.cat((a, a[:, :1]), dim=1)[:, : a.shape[1]], ["pad_kernel"]),
}


@pytest.mark.parametrize("what", COPIES)
@pytest.mark.parametrize("which", [0, 1], ids=["a", "b"])
def test_only_operands_that_lie_badly_are_copied(emu, what, which):
    view, copies = COPIES[what]
    args = operands(SHAPE)
    args[which] = view(args[which].view(torch.uint8)).view(E4M3)
    assert kernels_of(emu, lambda: check_gemm(EMU, args)) == [*copies, "gemm"]


def test_rows_of_one_operand_do_not_move_the_others(emu):
    """An M that is padded for a copy of a changes nothing behind the output's last row."""
    a, b, sa, sb = operands((17, 32, 48))
    wide = torch.cat((a.view(torch.uint8), torch.zeros(17, 1, dtype=torch.uint8)), dim=1)
    out = torch.full((32, 32), 7.0)
    OPS.gemm_out(wide[:, :48].view(E4M3), b, sa, sb, None, "none", None, False, False, out[:17], None)
    want, _ = reference.gemm_fp64(a, b, sa, sb, None, "none", None, torch.float32)
    assert_within(out[:17], want, torch.full((17, 32), 1e-2, dtype=torch.float64), "gemm_out")
    assert (out[17:] == 7).all()


# --- scales of rows and blocks --------------------------------------------------------------------


@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("kinds", TOGETHER, ids=["*".join(kinds) for kinds in TOGETHER])
def test_scales_of_rows_and_blocks_go_the_way_of_the_table(emu, arch, kinds):
    emu.set_device(DEVICES[arch])
    args, scalings = scaled_operands((24, 32, 512), kinds), [ROWS if ROWS in kinds else kind for kind in kinds]
    for epilogue in ("none", "relu"):
        way = way_of(emu, arch, (E4M3, E4M3), torch.bfloat16, epilogue, None, None, scalings)
        if way == "refused":
            with pytest.raises(ValueError, match="scales need compute capability"):
                check_gemm(EMU, args, None, epilogue)
            continue
        launched = kernels_of(emu, lambda: check_gemm(EMU, args, None, epilogue))
        assert [kernel for kernel in launched if kernel != "arrange_kernel"] == (
            ["gemm"] if way == "native" else ["gemm", "epilogue_kernel"]
        )
    assert emu.cublaslt_refusals() == []


AS_CUBLASLT_WANTS = {
    ROWS: shifted,
    WIDE: lambda s, by: shifted(s.t().contiguous(), by).t(),
    SQUARE: shifted,  # 512 / 128 columns: a multiple of four
}


@pytest.mark.parametrize("kinds", [(ROWS, ROWS), (WIDE, WIDE), (WIDE, SQUARE)], ids="*".join)
def test_only_scales_that_lie_otherwise_are_copied(emu, kinds):
    args = scaled_operands((24, 32, 512), kinds)
    fitting, moved = (
        [*args[:2], *(AS_CUBLASLT_WANTS[kind](s, by) for kind, s in zip(kinds, args[2:]))] for by in (0, 4)
    )
    assert kernels_of(emu, lambda: check_gemm(EMU, fitting)) == ["gemm"]
    apart = [*args[:2], *(s.repeat(2, 2)[::2, ::2] for s in args[2:])]
    assert kernels_of(emu, lambda: check_gemm(EMU, apart)) == ["arrange_kernel", "arrange_kernel", "gemm"]
    assert kernels_of(emu, lambda: check_gemm(EMU, moved)) == ["arrange_kernel", "arrange_kernel", "gemm"]


def test_an_older_library_has_no_block_scales(emu):
    emu.configure_cublaslt(version=120800)
    rows = scaled_operands((8, 16, 32), (ROWS, ROWS))
    assert kernels_of(emu, lambda: check_gemm(EMU, rows)) == ["gemm", "epilogue_kernel"]
    with pytest.raises(ValueError, match="cuBLASLt 12.9"):
        check_gemm(EMU, scaled_operands((8, 16, 256), (WIDE, WIDE)))


def test_the_readme_shows_the_table(emu):
    lines = (Path(__file__).parents[1] / "README.md").read_text().split("## GEMMs on a GPU")[1].splitlines()
    shown = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")][:6]
    assert shown[0][1:] == ["8.9", "9.0", "10.0", "12.0"] and len(shown) == 6
    for i, arch in enumerate((89, 90, 100, 120)):
        assert [(row[0], row[1 + i]) for row in shown[1:]] == [row[:2] for row in emu.gemm_scalings(arch, 120900)]


def test_the_table_is_one_of_sentences(emu):
    """What people read: whole, in the order in which it is asked, the reasons as errors give them."""
    table = emu.gemm_support_table()
    assert table[0][0] == "up to 8.8" and table[-1][6] == "refused"
    assert {row[6] for row in table} == {"native", "fallback", "refused"}
    (row,) = [row for row in table if row[:3] == ("9.0", "12.9", "row")]
    assert row[6] == "native" and "OUTER_VEC_32F" in row[7]
    assert all(all(row) for row in table)


def test_info_tells_how_each_device_multiplies(emu, monkeypatch):
    like = {"name": "GPU", "multiprocessors": 132, "memory_bytes": 1 << 30}
    gpus = [like | {"capability": capability} for capability in ((9, 0), (8, 9), (9, 0))]

    class Cuda:
        device_facts = staticmethod(lambda: {"devices": gpus, "driver_version": 13000, "unavailable": ""})
        gemm_scalings = staticmethod(lambda arch: emu.gemm_scalings(arch, 130000))
        gemm_support = staticmethod(lambda: [{"way": "native"}])

    monkeypatch.setattr(_library, "cuda", Cuda)
    told = {f.name: f for f in tc.info().features if " scales on " in f.name}
    assert len(told) == 10 and told["row scales on 9.0"].note.startswith("native: ")
    assert told["row scales on 8.9"].available and told["row scales on 8.9"].note.startswith("fallback: ")
    assert not told["1x128 scales on 8.9"].available
    assert "need compute capability 9.0" in told["1x128 scales on 8.9"].note
    assert tc.gemm_support() == [{"way": "native"}]
