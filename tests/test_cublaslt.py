"""The stand-in for cuBLASLt in tests/emu against the real library, and what it refuses."""

from __future__ import annotations

import pytest
import torch

import cublaslt_replay
from cases import DTYPES, E4M3, E5M2, scalar
from cublaslt_replay import RealObject
from gemm_checks import operands

SUCCESS, INVALID_VALUE, NOT_SUPPORTED = 0, 7, 15
SHAPE = (24, 32, 48)

# Numbers of the header
COMPUTE_32F, COMPUTE_16F = 68, 64
R_32F, R_16F, R_16BF, R_8F_E4M3, R_8F_E5M2 = 0, 2, 14, 28, 29
DEFAULT, BIAS, GELU, GELU_AUX, DGELU, BGRADB = 1, 4, 32, 160, 192, 512

real_library = pytest.mark.skipif(
    cublaslt_replay.library() is None, reason="cuBLASLt is not installed: it comes with torch's CUDA wheels"
)


def ask_everything(emu) -> None:
    """One product of each kind, with and without what is optional."""
    ops = torch.ops.transcast_emu
    pairs = [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)]
    m, n, _ = SHAPE
    for pair in pairs:
        args = operands(SHAPE, pair)
        for dtype in DTYPES.values():
            bias, aux = torch.zeros(n, dtype=dtype), torch.zeros(m, n, dtype=dtype)
            for epilogue in ("none", "relu", "gelu_tanh"):
                for one in (None, bias):
                    ops.gemm(*args, one, epilogue, None, dtype, True)
            ops.gemm(*args, None, "dgelu", aux, dtype, False)
            for one in (None, bias):
                out = torch.zeros(m, n, dtype=dtype)
                ops.gemm_out(*args, one, "gelu_tanh", None, False, False, out, aux)
        ops.gemm_out(*args, None, "none", None, False, True, torch.zeros(m, n), None)
        for dtype in (E4M3, E5M2):
            for one in (None, torch.zeros(n)):
                ops.gemm_fp8(*args, scalar(1.0), one, "none" if one is None else "relu", dtype, False, None)


def question(emu, *, epilogue: int, output: int = R_16BF) -> dict:
    """One that was asked, of e4m3 operands, with this epilogue and type of D."""
    ask_everything(emu)
    for one in emu.cublaslt_record():
        a, b, _, d = (cublaslt_replay.number_in(layout, 0) for layout in one["layouts"])
        found = cublaslt_replay.number_in(one["descriptor"], 7)
        if (a, b, d, found) == (R_8F_E4M3, R_8F_E4M3, output, epilogue):
            return one
    raise LookupError(f"nothing asked for epilogue {epilogue} into type {output}")


@real_library
def test_the_real_library_takes_every_descriptor(emu):
    ask_everything(emu)
    assert cublaslt_replay.replay(emu.cublaslt_record()) > 30


@real_library
def test_attributes_have_the_sizes_of_the_real_library(emu):
    """Each attribute that was ever set: too short, too long, unknown."""
    ask_everything(emu)
    numbers = {"descriptor": set(), "layout": set(), "preference": set()}
    for question in emu.cublaslt_record():
        numbers["descriptor"] |= set(question["descriptor"].items())
        numbers["layout"] |= {item for layout in question["layouts"] for item in layout.items()}
        numbers["preference"] |= set(question["preference"].items())
    makers = {
        "descriptor": lambda: RealObject("MatmulDesc", 68, 0),
        "layout": lambda: cublaslt_replay.layout(emu.cublaslt_record()[0]["layouts"][0]),
        "preference": lambda: RealObject("MatmulPreference"),
    }
    for kind, make in makers.items():
        with make() as real:
            for number, (size, value) in numbers[kind]:
                for wrong in (value[:-1], value + b"\0", value):
                    status = emu.cublaslt_set(kind, number, wrong)
                    assert status == (0 if len(wrong) == size else INVALID_VALUE)
                    assert real.set(number, wrong) == status, f"{kind} {number}, {len(wrong)} bytes"
            assert emu.cublaslt_set(kind, 999, b"\0" * 4) == real.set(999, b"\0" * 4) == INVALID_VALUE


@real_library
def test_defaults_are_those_of_the_real_library(emu):
    """A descriptor without epilogue, as the first product asks, holds the defaults of all that nobody set."""
    ask_everything(emu)
    plain = question(emu, epilogue=DEFAULT)
    with cublaslt_replay.descriptor(plain["descriptor"]) as real:
        for number in (6, 22, 26):  # fill mode, types of aux and bias
            size, value = plain["descriptor"][number]
            assert real.get(number, size) == value, number
    with RealObject("MatmulPreference") as real:
        size, value = plain["preference"][3]  # reduction schemes
        assert real.get(3, size) == value


# What changes make of a question that was fine, each of them an object (0 to 3: the layouts of A, B, C, D), a
# number and a value.
OP = "descriptor"
REFUSED = {
    "compute type": (DEFAULT, R_16BF, [(OP, 0, COMPUTE_16F)], NOT_SUPPORTED),
    "scale type": (DEFAULT, R_16BF, [(OP, 1, R_16F)], NOT_SUPPORTED),
    "alpha on the device": (DEFAULT, R_16BF, [(OP, 2, 1)], NOT_SUPPORTED),
    "A not transposed": (DEFAULT, R_16BF, [(OP, 3, 0)], None),
    "B transposed": (DEFAULT, R_16BF, [(OP, 4, 1)], None),
    "e5m2 x e5m2": (DEFAULT, R_16BF, [(0, 0, R_8F_E5M2), (1, 0, R_8F_E5M2)], NOT_SUPPORTED),
    "operand of 16 bits": (DEFAULT, R_16BF, [(0, 0, R_16BF)], NOT_SUPPORTED),
    "C of another type": (DEFAULT, R_16BF, [(2, 0, R_32F)], NOT_SUPPORTED),
    "C of FP8": (DEFAULT, R_8F_E4M3, [(2, 0, R_8F_E4M3)], NOT_SUPPORTED),
    "e5m2 out of e4m3 x e4m3": (DEFAULT, R_8F_E4M3, [(3, 0, R_8F_E5M2)], NOT_SUPPORTED),
    "bias of FP32": (BIAS, R_16BF, [(OP, 26, R_32F)], NOT_SUPPORTED),
    "bias of FP16 beside BF16": (BIAS, R_16BF, [(OP, 26, R_16F)], NOT_SUPPORTED),
    "no bias": (BIAS, R_16BF, [(OP, 8, 0)], INVALID_VALUE),
    "bias between 16 bytes": (BIAS, R_16BF, [(OP, 8, 8)], NOT_SUPPORTED),
    "rows of D": (DEFAULT, R_16BF, [(3, 2, 16)], INVALID_VALUE),
    "columns of C": (DEFAULT, R_16BF, [(2, 3, 23)], INVALID_VALUE),
    "k of A": (DEFAULT, R_16BF, [(0, 2, 32)], INVALID_VALUE),
    "leading dimension within a column": (DEFAULT, R_16BF, [(0, 4, 32)], INVALID_VALUE),
    "leading dimension between 16 bytes": (DEFAULT, R_16BF, [(0, 4, 56)], NOT_SUPPORTED),
    "m": (DEFAULT, R_16BF, [(0, 3, 24), (2, 2, 24), (3, 2, 24)], NOT_SUPPORTED),
    "k": (DEFAULT, R_16BF, [(0, 2, 40), (1, 2, 40)], NOT_SUPPORTED),
    "no columns": (DEFAULT, R_16BF, [(1, 3, 0), (2, 3, 0), (3, 3, 0)], INVALID_VALUE),
    "C scale": (DEFAULT, R_16BF, [(OP, 19, 256)], INVALID_VALUE),
    "D scale beside BF16": (DEFAULT, R_16BF, [(OP, 20, 256)], INVALID_VALUE),
    "amax beside BF16": (DEFAULT, R_16BF, [(OP, 21, 256)], INVALID_VALUE),
    "gelu into FP32": (DEFAULT, R_32F, [(OP, 7, GELU)], NOT_SUPPORTED),
    "gelu into FP8": (DEFAULT, R_8F_E4M3, [(OP, 7, GELU)], NOT_SUPPORTED),
    "bias gradient": (DEFAULT, R_16BF, [(OP, 7, BGRADB)], NOT_SUPPORTED),
    "no aux": (GELU_AUX, R_16BF, [(OP, 11, 0)], INVALID_VALUE),
    "aux between 16 bytes": (GELU_AUX, R_16BF, [(OP, 11, 8)], NOT_SUPPORTED),
    "leading dimension of aux": (GELU_AUX, R_16BF, [(OP, 12, 36)], INVALID_VALUE),
    "leading dimension of aux within a column": (GELU_AUX, R_16BF, [(OP, 12, 24)], INVALID_VALUE),
    "type of aux": (GELU_AUX, R_16BF, [(OP, 22, R_16F)], NOT_SUPPORTED),
    "type of dgelu's aux": (DGELU, R_16BF, [(OP, 22, R_32F)], NOT_SUPPORTED),
    "one vector of scales": (DEFAULT, R_16BF, [(OP, 31, 3)], NOT_SUPPORTED),
    "two 128x128": (DEFAULT, R_16BF, [(OP, 31, 5), (OP, 32, 5)], NOT_SUPPORTED),
    "E8M0 before 10.0": (DEFAULT, R_16BF, [(OP, 31, 2), (OP, 32, 2)], NOT_SUPPORTED),
    "row scales into FP8": (DEFAULT, R_8F_E4M3, [(OP, 31, 3), (OP, 32, 3)], NOT_SUPPORTED),
    "row scales and dgelu": (DGELU, R_16BF, [(OP, 31, 3), (OP, 32, 3)], NOT_SUPPORTED),
    "row scales between 16 bytes": (DEFAULT, R_16BF, [(OP, 31, 3), (OP, 32, 3), (OP, 17, 4)], INVALID_VALUE),
}


def changed(asked: dict, changes: list[tuple]) -> dict:
    objects = {OP: dict(asked[OP])} | {i: dict(layout) for i, layout in enumerate(asked["layouts"])}
    sizes = {OP: {n: 8 for n in (8, 11, 12, 17, 18, 19, 20, 21)}} | {i: {2: 8, 3: 8, 4: 8} for i in range(4)}
    for name, number, value in changes:
        size = sizes[name].get(number, 4)
        objects[name][number] = (size, value.to_bytes(size, "little"))
    return {OP: objects[OP], "layouts": [objects[i] for i in range(4)]}


@pytest.mark.parametrize("what", REFUSED)
def test_it_refuses(emu, what):
    epilogue, output, changes, status = REFUSED[what]
    asked = question(emu, epilogue=epilogue, output=output)
    assert emu.cublaslt_judge(asked, 90) == (SUCCESS, "")
    got, why = emu.cublaslt_judge(changed(asked, changes), 90)
    assert why and got == (status if status is not None else got) and got != SUCCESS


def test_what_an_architecture_and_a_version_have(emu):
    asked = question(emu, epilogue=DEFAULT)
    rows, mx = (changed(asked, [(OP, 31, mode), (OP, 32, mode)]) for mode in (3, 2))
    aligned = [(OP, 17, 256), (OP, 18, 256)]
    rows, ragged = changed(rows, aligned), changed(mx, aligned)
    mx = changed(ragged, [(i, number, 64) for i in (0, 1) for number in (2, 4)])  # k: a multiple of 32
    assert emu.cublaslt_judge(ragged, 100)[0] == NOT_SUPPORTED
    taken = {89: (False, False), 90: (True, False), 100: (False, True), 120: (False, True)}
    for arch, (takes_rows, takes_mx) in taken.items():
        assert emu.cublaslt_judge(asked, arch)[0] == SUCCESS
        assert (emu.cublaslt_judge(rows, arch)[0] == SUCCESS) == takes_rows, arch
        assert (emu.cublaslt_judge(mx, arch)[0] == SUCCESS) == takes_mx, arch
    assert emu.cublaslt_judge(asked, 80)[0] == NOT_SUPPORTED
    emu.configure_cublaslt(version=120800)
    assert emu.cublaslt_judge(rows, 90)[0] == NOT_SUPPORTED
    # Both operands square: other formats than TN then agree about k.
    outputs = [(i, number, 48) for i in (2, 3) for number in (2, 4)]
    square = changed(asked, [(0, 3, 48), *outputs, (OP, 3, 0)])
    assert emu.cublaslt_judge(square, 90)[0] == NOT_SUPPORTED
    assert emu.cublaslt_judge(square, 100)[0] == SUCCESS


def test_what_the_heuristic_is_asked(emu):
    """Attributes that no result shows: accumulation, the workspace's limit, alignments."""

    def asked(device: int, fast_accum: bool) -> dict:
        emu.configure_cublaslt()
        emu.set_device(device)
        known = emu.cublaslt_record()
        m = len(known) + 100  # a product that nobody has asked for
        args = operands((m, 32, 48))
        torch.ops.transcast_emu.gemm(*args, None, "none", None, torch.bfloat16, fast_accum)
        (new,) = emu.cublaslt_record()[len(known) :]
        assert new["layouts"][1][3][1] == m.to_bytes(8, "little")
        for number, tensor in ((5, args[1]), (6, args[0])):
            alignment = cublaslt_replay.number_in(new["preference"], number)
            assert 16 <= alignment <= 256 and tensor.data_ptr() % alignment == 0
        return new

    for device, mebibytes in ((0, 32), (1, 4), (2, 32)):
        for fast_accum in (False, True):
            new = asked(device, fast_accum)
            assert cublaslt_replay.number_in(new["descriptor"], 25) == fast_accum
            assert cublaslt_replay.number_in(new["preference"], 1) == mebibytes << 20
