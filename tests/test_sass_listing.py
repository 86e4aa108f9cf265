"""benchmarks/sass.py reads listings as nvdisasm prints them, and refuses faulty ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))

import sass  # noqa: E402
import sass_listing  # noqa: E402
import sass_rules  # noqa: E402

# One turn of the loop: 4 rows of 8 elements. Beside it lies what is no part of the main path: a call for rare
# operands, a shuffle repeated for a warp that has fallen apart, and the finish.
KERNEL = "_ZN9transcast4cuda11rows_kernelINS0_5PlainINS_4BF16EEENS0_7AlignedENS_4E4M3EEEvNS0_8RowsArgsIT_EE"
LOOP = """\
.L_x_0:
@!P1 LDG.E.128.CONSTANT R4, desc[UR6][R2.64]
LDG.E.128.CONSTANT R8, desc[UR6][R2.64+0x200]
LDG.E.128.CONSTANT R12, desc[UR6][R2.64+0x400]
LDG.E.128.CONSTANT R16, desc[UR6][R2.64+0x600]
FMUL R20, R4, R24
@P2 BRA `(.L_x_2)
CALL.REL.NOINC `($__internal_0_$__cuda_sm20_rcp_rn_f32_slowpath)
MOV R20, R21
BRA `(.L_x_3)
.L_x_2:
MUFU.RCP R20, R20
.L_x_3:
BRA.DIV UR4, `(.L_x_9)
STG.E.64 desc[UR6][R22.64], R20
STG.E.64 desc[UR6][R22.64+0x100], R20
STG.E.64 desc[UR6][R22.64+0x200], R20
@!P0 STG.E.64 desc[UR6][R22.64+0x300], R20
@P0 BRA `(.L_x_0)
"""
FIRST = ["LDC R1, c[0x0][0x28]", "LDG.E.CONSTANT R24, desc[UR6][R2.64]"]
LAST = [
    "BAR.SYNC.DEFER_BLOCKING 0x0",
    "@P3 EXIT",
    "ATOMG.E.MAX.STRONG.GPU PT, R2, desc[UR6][R2.64], R7",
    "MEMBAR.SC.GPU",
    "ATOMG.E.INC.STRONG.GPU PT, R2, desc[UR6][R2.64+0x4], R7",
    "@P3 EXIT",
    "MEMBAR.SC.GPU",
    "ATOMG.E.EXCH.STRONG.GPU PT, R2, desc[UR6][R2.64], RZ",
    "LDG.E.CONSTANT R9, desc[UR6][R2.64]",
    "STG.E desc[UR6][R2.64], R9",
    "EXIT",
    ".L_x_9:",
    "WARPSYNC.COLLECTIVE R30, `(.L_x_10)",
    ".L_x_10:",
    "SHFL.BFLY PT, R31, R7, R30, R31",
    "BRA `(.L_x_3)",
]
CALLED = ["FMUL R21, R20, R20", "LDG.E.U8 R9, desc[UR6][R2.64]", "RET.REL.NODEC R2"]
MAX_THREADS = """
\t//----- nvinfo : EIATTR_MAX_THREADS
\t.align\t\t4
.L_21:
        /*00bc*/ \t.byte\t0x04, 0x05
        /*00be*/ \t.short\t(.L_23 - .L_22)
.L_22:
        /*00c0*/ \t.word\t0x00000100
        /*00c4*/ \t.word\t0x00000001
        /*00c8*/ \t.word\t0x00000001
"""


def line(number: int, instruction: str) -> str:
    if not instruction.startswith("@"):
        instruction = f"     {instruction}"
    return f"        /*{16 * number:04x}*/              {instruction} ;"


def listing(loop: str, kernel: str = KERNEL, last: list[str] = LAST) -> str:
    def lines(code: list[str]) -> str:
        return "\n".join(c if c.startswith(".L") else line(n, c) for n, c in enumerate(code))

    head = f'\t.section\t.nv.info.{kernel},"",@"SHT_CUDA_INFO"\n{MAX_THREADS}\n'
    head += f'\t.section\t.text.{kernel},"ax",@progbits\n'
    code = lines([*FIRST, *loop.splitlines(), *last])
    called = lines(CALLED)
    label = "$__internal_0_$__cuda_sm20_rcp_rn_f32_slowpath"
    return f"{head}\t.align\t128\n.text.{kernel}:\n{code}\n{label}:\n{called}\n"


def row_of(loop: str, kernel: str = KERNEL, last: list[str] = LAST, **facts: int) -> dict:
    (found,) = sass_listing.kernels_of(listing(loop, kernel, last), "9.0")
    found.registers = 40
    row = sass.facts_of(found)
    return sass.finished({**row, **facts, "kernel": sass.readable([kernel])[kernel]})


def test_facts_of_a_listing() -> None:
    row = row_of(LOOP)
    assert row["kernel"] == "rows_kernel<Plain<bf16>, Aligned, e4m3>"
    assert (row["arch"], row["bound"], row["threads"], row["shared"]) == ("9.0", 256, [256], 64)
    assert row["meeting"] == ["MAX", "MEMBAR", "INC", "MEMBAR", "EXCH"]
    assert row["loads"] == {"32": 2, "128": 4} and row["stores"] == {"32": 1, "64": 4}
    assert row["main"] == {
        "instructions": 13,
        "loads": {"128": 4},
        "stores": {"64": 4},
        "in_flight": 4,
        "elements": 32,
        "per_element": 0.4,
    }
    assert sass_rules.violations(row) == []


UNALIGNED = KERNEL.replace("7AlignedE", "9UnalignedE")
AGAIN = "\n".join(f"@P4 LDG.E.128.CONSTANT R{36 + 4 * n}, desc[UR6][R2.64+{16 * n:#x}]" for n in range(4))
EDGES = """\
@!P2 BRA `(.L_x_4)
BRA `(.L_x_5)
.L_x_4:
@!P1 LDG.E.U16.CONSTANT R4, desc[UR6][R2.64]
IMAD.U32 R4, R4, 0x10000, RZ
.L_x_5:
"""
NO_NEIGHBOUR = (
    "@P5 BRA `(.L_x_6)\n" + AGAIN + "\nBRA `(.L_x_7)\n.L_x_6:\n" + 8 * "MOV R36, RZ\n" + ".L_x_7:\n"
)
UNALIGNED_LOOP = LOOP.replace(".L_x_3:\n", f".L_x_3:\n{EDGES}{NO_NEIGHBOUR}STG.E.U8 desc[UR6][R22.64], R20\n")


def test_unaligned_code_may_take_the_edges_in_pieces() -> None:
    row = row_of(UNALIGNED_LOOP, UNALIGNED)
    assert row["main"]["loads"] == {"128": 8} and row["loads"]["16"] == 1
    assert row["main"]["elements"] == 32 and sass_rules.violations(row) == []


TILES = KERNEL.replace("11rows_kernel", "12tiles_kernel")
FAULTS = {
    "narrow load": (
        LOOP.replace("LDG.E.128", "LDG.E.64", 1),
        KERNEL,
        "loads narrower than 16 bytes on the main",
    ),
    "narrow loads": (LOOP.replace("LDG.E.128", "LDG.E.64"), KERNEL, "16-byte loads bring 0 elements"),
    "loads by element": (LOOP.replace("LDG.E.128", "LDG.E.U16"), KERNEL, "16-byte loads bring 0 elements"),
    "narrow load beside": (LOOP.replace("MOV R20", "LDG.E.U16 R20"), KERNEL, "besides 2 scales"),
    "a scale in the loop": (LOOP.replace("FMUL", "LDG.E R24, R2\nFMUL"), KERNEL, "on the main path: {32: 1}"),
    "16 bits for a tile": (
        LOOP.replace("FMUL", "LDG.E.U16 R24, R2\nFMUL"),
        TILES,
        "on the main path: {16: 1}",
    ),
    "narrow store": (LOOP.replace("STG.E.64", "STG.E", 1), KERNEL, "stores narrower than 8 bytes"),
    "narrow stores": (LOOP.replace("STG.E.64", "STG.E.U8"), UNALIGNED, "wanted {64:"),
    "missing store": (
        LOOP.replace("@!P0 STG.E.64", "@!P0 STS.64"),
        KERNEL,
        "{64: 3} (bits: count), wanted {64: 4}",
    ),
    "spill": (
        LOOP.replace("FMUL", "STL [R1+0x8], R4\nLDL R4, [R1+0x8]\nFMUL"),
        KERNEL,
        "2 local loads and stores",
    ),
    "spill beside": (LOOP.replace("MOV R20", "LDL R20"), KERNEL, "1 local loads and stores"),
    "a load put off": (
        LOOP.replace("LDG.E.128.CONSTANT R16", "FMUL R21, R4, R24\nLDG.E.128.CONSTANT R16"),
        KERNEL,
        "3 loads in flight",
    ),
    "unaligned by element": (
        UNALIGNED_LOOP.replace("@P4 LDG.E.128", "@P4 LDG.E.U16"),
        UNALIGNED,
        "on the main path",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_listing_is_refused(fault: str) -> None:
    loop, kernel, message = FAULTS[fault]
    wrong = sass_rules.violations(row_of(loop, kernel))
    assert any(message in what for what in wrong), wrong


def test_stack_wrong_bounds_and_unknown_kernels_are_refused() -> None:
    assert "8 bytes of stack" in sass_rules.violations(row_of(LOOP, stack=8))[0]
    assert "bound to 512 threads, launched with 256" in sass_rules.violations(row_of(LOOP, bound=512))[0]
    unknown = KERNEL.replace("11rows_kernel", "11cows_kernel")
    assert "does not know it" in sass_rules.violations(row_of(LOOP, unknown))[0]


def test_code_that_cannot_be_followed_is_an_error() -> None:
    with pytest.raises(ValueError, match="computed address"):
        row_of(LOOP.replace("BRA.DIV UR4, `(.L_x_9)", "BRX R2 -0x40"))


def test_without_a_loop_the_path_ends_where_blocks_meet() -> None:
    row = row_of(LOOP.replace("@P0 BRA `(.L_x_0)\n", ""))
    assert row["main"]["loads"] == {"32": 1, "128": 4} and row["main"]["stores"] == {"64": 4}
    assert row["main"]["instructions"] == 2 + 12 + 2


def test_one_row_for_both_formats_where_they_agree() -> None:
    row = row_of(LOOP)
    twin = {**row, "kernel": row["kernel"].replace("e4m3", "e5m2")}
    assert [r["kernel"] for r in sass.merged([row, twin])] == ["rows_kernel<Plain<bf16>, Aligned, fp8>"]
    assert len(sass.merged([row, {**twin, "registers": 41}])) == 2


def test_differences_name_kernel_and_fact() -> None:
    table = {"archs": ["9.0"], "rows": [row_of(LOOP)]}
    other = {
        "archs": ["9.0", "8.9"],
        "rows": [{**row_of(LOOP), "registers": 41}, {**row_of(LOOP), "arch": "8.9"}],
    }
    assert sass.differences(table, table) == []
    assert sass.differences(table, other) == [
        "rows_kernel<Plain<bf16>, Aligned, e4m3> for 9.0: registers 40, not 41"
    ]
    assert "registers None, not 41" in " ".join(sass.differences({**table, "rows": []}, other))


@pytest.mark.parametrize("fault", ["MEMBAR", "MAX", "INC", "EXCH"])
def test_a_finish_without_a_fence_or_an_atomic_is_refused(fault: str) -> None:
    at = next(n for n, instruction in enumerate(LAST) if fault in instruction)
    row = row_of(LOOP, last=LAST[:at] + LAST[at + 1 :])
    assert ["atomics and fences" in what for what in sass_rules.violations(row)] == [True]


def test_atomics_elsewhere_are_refused() -> None:
    row = row_of(LOOP, KERNEL.replace("11rows_kernel", "17multi_cast_kernel"))
    assert any("atomics and fences" in what for what in sass_rules.violations(row))
