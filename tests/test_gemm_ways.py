"""The ways of a GEMM: one cublasLtMatmul, or an FP32 product and a kernel behind it; and what is copied."""

from __future__ import annotations

import pytest
import torch

from cases import DTYPES, E4M3, FORMATS, fp8_integers, normal, scalar
from conftest import assert_same_bytes, assert_within
from gemm_checks import PAIRS, check_gemm, check_gemm_fp8, check_gemm_out, operands, pairs
from gemm_emu import DEVICES, EMU, OPS, SHAPE, fresh, gemm, kernels_of, shifted  # noqa: F401
from transcast import reference

ALL_BUT_PLAIN = {2, 4, 6, 32, 36, 160, 164, 192}  # cublasLtEpilogue_t


def way_of(emu, arch, pair, out_dtype, epilogue, bias, aux) -> str:
    """native or fallback, as the support table has it."""
    dtypes = (*pair, out_dtype, getattr(aux, "dtype", ""))
    a, b, out, aux_dtype = (str(dtype).removeprefix("torch.") for dtype in dtypes)
    number = int(arch.replace(".", ""))
    return emu.gemm_support(a, b, epilogue, bias is not None, aux is not None, aux_dtype, out, number, 130000)


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


def test_a_scale_inside_the_output_is_read_before_it_is_written(emu):
    """Every block of a GEMM reads its scales at its end: also when others have written theirs."""
    ones = [torch.ones(rows, 16).to(E4M3) for rows in (32, 16)]
    out = torch.zeros(32, 16)
    out[0, 0] = 0.5
    OPS.gemm_out(*ones, out[:1, :1], scalar(1.0), None, "none", None, False, False, out, None)
    assert torch.equal(out, torch.full((32, 16), 8.0))


def test_rows_of_one_operand_do_not_move_the_others(emu):
    """An M that is padded for a copy of a changes nothing behind the output's last row."""
    a, b, sa, sb = operands((17, 32, 48))
    wide = torch.cat((a.view(torch.uint8), torch.zeros(17, 1, dtype=torch.uint8)), dim=1)
    out = torch.full((32, 32), 7.0)
    OPS.gemm_out(wide[:, :48].view(E4M3), b, sa, sb, None, "none", None, False, False, out[:17], None)
    want, _ = reference.gemm_fp64(a, b, sa, sb, None, "none", None, torch.float32)
    assert_within(out[:17], want, torch.full((17, 32), 1e-2, dtype=torch.float64), "gemm_out")
    assert (out[17:] == 7).all()
