"""What the kernels are launched with and have to do, and what follows for their machine code."""

from __future__ import annotations

import re
from dataclasses import dataclass

TILE_SMEM, MAXIMA, SUMS_SMEM = 32832, 64, 1024  # bytes: sizeof(TileSmem), sizeof(Maxima), sums.cu's Smem


@dataclass(frozen=True)
class Shape:
    """A kernel's launch, and a thread's work on one tile."""

    threads: tuple[int, ...]  # sizes of block that are launched
    shared: int  # dynamic, bytes
    elements: int = 0  # positions of the operands in whole chunks; 0: one by one (any layout, sums)
    scalars: int = 0  # loads of a scale on the main path
    codes_out: bool = False  # writes q
    transposed: bool = False  # writes q_t
    finishes: bool = False  # its last block writes what follows from all blocks' amax
    min_in_flight: int = 4  # 16-byte loads before the first use, where there are elements


KERNELS = {
    "rows_kernel": Shape((256,), MAXIMA, 32, codes_out=True, finishes=True),
    "tiles_kernel": Shape(
        (512, 256, 128), TILE_SMEM, 64, scalars=1, codes_out=True, transposed=True, finishes=True
    ),
    "multi_amax_kernel": Shape((512,), MAXIMA, 64, finishes=True),
    "multi_cast_kernel": Shape((512,), TILE_SMEM, 64, scalars=1, codes_out=True, transposed=True),
    "transpose_kernel": Shape((512, 256, 128), TILE_SMEM, 64, transposed=True),
    "chunks_kernel": Shape((256,), 0, 64),
    "elements_kernel": Shape((256,), 0),
    "add_sums_kernel": Shape((256,), SUMS_SMEM),
    "pad_kernel": Shape((256,), 0),
    "epilogue_kernel": Shape((256,), 0),
    "epilogue_fp8_kernel": Shape((256,), MAXIMA, finishes=True),
    "bias_kernel": Shape((256,), 0),
    "arrange_kernel": Shape((256,), 0),
    "finish_fp8_kernel": Shape((256,), MAXIMA, finishes=True),
    "probe_kernel": Shape((1,), 0),
}
# finish_block: the block's amax, a ticket behind it, and the last one takes what all have left.
FINISH = ["MAX", "MEMBAR", "INC", "MEMBAR", "EXCH"]
SCALES = 2  # the one that is cast with, and the given one that the last block reads
OPERANDS = {"Swiglu": 2, "ActivationGradient": 2, "SwigluGradient": 3}
PARTS = {"SwigluGradient": 2}
BYTES = {"f32": 4, "bf16": 2, "f16": 2}


@dataclass(frozen=True)
class Limits:
    """Of one multiprocessor."""

    warps: int
    blocks: int
    shared: int  # bytes


# CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability"; the sizes in which
# registers and shared memory are handed out: cuda_occupancy.h of CUDA 13.0.
LIMITS = {
    "8.9": Limits(48, 24, 100 << 10),
    "9.0": Limits(64, 32, 228 << 10),
    "10.0": Limits(64, 32, 228 << 10),
    "12.0": Limits(48, 24, 100 << 10),
}
PARTITIONS, PARTITION_REGISTERS, REGISTER_UNIT = 4, 16384, 256  # registers go to warps
SHARED_UNIT, SYSTEM_SHARED = 128, 1024  # bytes; the latter is the system's, per block


def occupancy(arch: str, threads: int, registers: int, shared: int) -> float:
    """Resident warps over the most that there can be."""
    limits = LIMITS[arch]
    warps = -(-threads // 32)
    per_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = PARTITIONS * (PARTITION_REGISTERS // per_warp) // warps
    per_block = -(-(shared + SYSTEM_SHARED) // SHARED_UNIT) * SHARED_UNIT
    blocks = min(limits.blocks, limits.warps // warps, by_registers, limits.shared // per_block)
    return round(blocks * warps / limits.warps, 3)


def family(kernel: str) -> str:
    return re.match(r"\w+", kernel)[0]


def words(kernel: str) -> set[str]:
    return set(re.findall(r"\w+", kernel))


def _one_of(table: dict[str, int], kernel: str, otherwise: int) -> int:
    return next((table[word] for word in table if word in words(kernel)), otherwise)


def bytes_per_element(kernel: str) -> int:
    """What the 16-byte loads of a kernel bring for one position of its operands."""
    codes_in = family(kernel) in ("transpose_kernel", "chunks_kernel")
    operands = _one_of(OPERANDS, kernel, 1) * (1 if codes_in else _one_of(BYTES, kernel, 1))
    return 2 * operands if "Unaligned" in words(kernel) else operands  # the chunk behind the last one, too


def elements_of(row: dict) -> int:
    """Positions of the operands that a thread handles on the main path, from what it loads there."""
    loads = _counts(row, "loads")
    if KERNELS[family(row["kernel"])].elements == 0:
        return sum(loads.values())
    return sum(bits // 8 * count for bits, count in loads.items() if bits >= 128) // bytes_per_element(
        row["kernel"]
    )


def stores_of(kernel: str, elements: int) -> dict[int, int]:
    """The stores of 8 bytes and more that a thread makes of so many elements, by bits."""
    shape, parts = KERNELS[family(kernel)], _one_of(PARTS, kernel, 1)
    stores = {}
    if shape.codes_out and "NoCodes" not in words(kernel):
        stores[64] = elements * parts // 8
    if shape.transposed:
        stores[128] = elements * parts // 16
    if family(kernel) == "chunks_kernel":
        stores[128] = elements * _one_of(BYTES, kernel, 1) // 16
    return stores


def threads_of(kernel: str) -> list[int]:
    """The block sizes that the kernel is launched with, the largest first: two parts take half the warps."""
    threads, parts = KERNELS[family(kernel)].threads, _one_of(PARTS, kernel, 1)
    return [n for n in threads if n * parts <= max(threads)] if family(kernel) == "tiles_kernel" else list(threads)


def violations(row: dict) -> list[str]:
    """What is wrong with a row of the table: spills, lost fences, accesses narrower than the layout allows."""
    kernel = row["kernel"]
    if family(kernel) not in KERNELS:
        return [f"{kernel}: KERNELS of benchmarks/sass_rules.py does not know it"]
    wrong = []
    if row["stack"] or row["local"]:
        wrong.append(f"spills: {row['stack']} bytes of stack, {row['local']} local loads and stores")
    if row["bound"] != threads_of(kernel)[0] != 1:
        wrong.append(f"bound to {row['bound']} threads, launched with {threads_of(kernel)[0]}")
    if row["meeting"] != (FINISH if KERNELS[family(kernel)].finishes else []):
        wrong.append(f"atomics and fences: {row['meeting']}")
    if KERNELS[family(kernel)].elements:
        wrong += _narrow_loads(row) + _narrow_stores(row)
        if row["main"]["in_flight"] < KERNELS[family(kernel)].min_in_flight:
            wrong.append(f"{row['main']['in_flight']} loads in flight")
    return [f"{kernel} for {row['arch']}: {what}" for what in wrong]


def _counts(row: dict, kind: str) -> dict[int, int]:
    return {int(bits): count for bits, count in row["main"][kind].items()}


def _narrow_loads(row: dict) -> list[str]:
    kernel, wrong = row["kernel"], []
    shape, elements = KERNELS[family(kernel)], row["main"]["elements"]
    if elements == 0 or shape.elements % elements:
        wrong.append(
            f"16-byte loads bring {elements} elements on the main path, of a thread's {shape.elements}"
        )
    narrow = {bits: count for bits, count in _counts(row, "loads").items() if bits < 128}
    if set(narrow) - {32} or sum(narrow.values()) > shape.scalars:
        wrong.append(f"loads narrower than 16 bytes on the main path: {narrow} (bits: count)")
    whole = "Aligned" in words(kernel)
    anywhere = {int(bits): count for bits, count in row["loads"].items() if int(bits) < 128}
    if whole and (set(anywhere) - {32} or sum(anywhere.values()) > SCALES):
        wrong.append(f"loads narrower than 16 bytes: {anywhere} (bits: count), besides {SCALES} scales")
    return wrong


def _narrow_stores(row: dict) -> list[str]:
    kernel, stores = row["kernel"], _counts(row, "stores")
    wide = {bits: count for bits, count in stores.items() if bits >= 64}
    wanted = stores_of(kernel, row["main"]["elements"])
    allowed = {8} if "Unaligned" in words(kernel) else set()  # the bytes before and behind whole units
    allowed |= {32} if "true" in words(kernel) else set()  # column sums
    wrong = []
    if wide != wanted:
        wrong.append(f"stores on the main path: {wide} (bits: count), wanted {wanted}")
    if set(stores) - set(wide) - allowed:
        wrong.append(f"stores narrower than 8 bytes on the main path: {stores} (bits: count)")
    return wrong
