"""Kernels as compiled: what nvdisasm and cuobjdump say about a library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(@\S+ +)?([A-Z][A-Z0-9_.]*) *([^;]*);")
USAGE = re.compile(r" Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
MAX_THREADS = re.compile(r"EIATTR_MAX_THREADS" + 3 * r".*?\.word\s+(\w+)\s", re.DOTALL)
COMPILER = re.compile(rb"Cuda compilation tools, release [\d.]+, V([\d.]+)")
LEAVES = {"EXIT", "RET", "KILL"}
INDIRECT = {"BRX", "BRXU", "JMX", "JMXU", "JMP"}
GLOBAL = {"LDG": "load", "LD": "load", "STG": "store", "ST": "store"}
LOCAL = {"LDL", "STL"}
FENCE = "MEMBAR"
ATOMIC = {"ATOM", "ATOMG", "RED", "REDG"}


class Instruction(NamedTuple):
    predicate: str  # "@P0 " or ""
    opcode: str
    operands: str

    @property
    def base(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def meeting(self) -> str:
        """By which blocks meet: MEMBAR, or what an atomic one does, as MAX. Empty for all others."""
        if self.base == FENCE:
            return FENCE
        if self.base in ATOMIC:
            return next(part for part in self.opcode.split(".")[1:] if part != "E")
        return ""

    @property
    def access(self) -> tuple[str, int] | None:
        """ "load" or "store" of global memory, and bits per thread."""
        kind = GLOBAL.get(self.base)
        return (kind, width(self.opcode)) if kind else None


def width(opcode: str) -> int:
    """Bits that a memory instruction moves per thread: LDG.E.128.CONSTANT 128, LDG.E.U8 8, LDG.E 32."""
    for part in opcode.split(".")[1:]:
        if part.lstrip("US").isdigit():
            return int(part.lstrip("US"))
    return 32


@dataclass
class Block:
    """Instructions without a branch into or out of their middle."""

    instructions: list[Instruction] = field(default_factory=list)
    next: list[int] = field(default_factory=list)

    def count(self, condition: Callable[[Instruction], bool]) -> int:
        return sum(map(condition, self.instructions))


@dataclass
class Kernel:
    name: str  # mangled
    arch: str  # "9.0"
    blocks: list[Block]
    threads: int  # per block at most, as __launch_bounds__ says
    registers: int = 0
    stack: int = 0
    shared: int = 0  # static

    def instructions(self) -> Iterator[Instruction]:
        for block in self.blocks:
            yield from block.instructions


def blocks_of(lines: list[str]) -> list[Block]:
    """The control flow of one function's listing."""
    blocks, labels, targets = [Block()], {}, {}
    for line in lines:
        if line.startswith("."):  # ".L_x_7:"
            if blocks[-1].instructions:
                blocks[-1].next.append(len(blocks))
                blocks.append(Block())
            labels[line[: line.index(":")]] = len(blocks) - 1
        elif found := INSTRUCTION.match(line):
            instruction = Instruction(found[1] or "", found[2], found[3].strip())
            blocks[-1].instructions.append(instruction)
            if instruction.base == "BRA" or instruction.base in (*LEAVES, *INDIRECT):
                here = len(blocks) - 1
                conditional = instruction.predicate or "," in instruction.operands
                blocks.append(Block())
                if conditional:
                    blocks[here].next.append(here + 1)
                # BRA.DIV goes where a warp that has fallen apart repeats a shuffle: no way of a whole warp.
                if instruction.base == "BRA" and instruction.opcode != "BRA.DIV":
                    targets[here] = re.search(r"`\((\S+)\)", instruction.operands)[1]
    for block, label in targets.items():
        blocks[block].next.append(labels[label])
    if not blocks[-1].instructions and len(blocks) - 1 not in labels.values():
        blocks.pop()
    return blocks


def kernels_of(listing: str, arch: str) -> Iterator[Kernel]:
    """The kernels of a cubin as nvdisasm prints it. Functions that a kernel calls are no part of it."""
    threads: dict[str, int] = {}
    for section in listing.split("\t.section\t")[1:]:
        kind, _, name = section[: section.index(",")].strip('"').partition("._Z")
        if kind == ".nv.info" and (found := MAX_THREADS.search(section)):
            threads["_Z" + name] = int(found[1], 0) * int(found[2], 0) * int(found[3], 0)
        elif kind == ".text":
            code = section.split("\n$", 1)[0]  # "$__internal_0_...:" begins a function of the compiler's own
            yield Kernel("_Z" + name, arch, blocks_of(code.splitlines()[1:]), threads.get("_Z" + name, 1024))


def tool(name: str) -> str:
    """cuobjdump or nvdisasm, of the CUDA toolkit or of the packages nvidia-cuda-cuobjdump and -nvdisasm."""
    for packages in dict.fromkeys([sysconfig.get_path("purelib"), *sys.path]):
        for found in sorted(Path(packages).glob(f"nvidia/cu1*/bin/{name}")):
            return str(found)
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(
            f"{name} is not there: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
        )
    return found


def output_of(*command: str, cwd: str | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def read_cubin(path: str, use: Callable[[Kernel], dict | list]) -> tuple[str, list]:
    """The compiler's version, and what ``use`` makes of each kernel."""
    compiler = COMPILER.search(Path(path).read_bytes())
    number = re.search(r"\.sm_(\d+)[af]?\.cubin$", path)[1]
    arch = f"{number[:-1]}.{number[-1]}"
    usage = {found[1]: found for found in USAGE.finditer(output_of(tool("cuobjdump"), "-res-usage", path))}
    results = []
    for kernel in kernels_of(output_of(tool("nvdisasm"), "-ndf", path), arch):
        found = usage[kernel.name]
        kernel.registers, kernel.stack = int(found[2]), int(found[3]) + int(found[5])
        # From 9.0 on, the kilobyte that the system takes of every block is counted in.
        kernel.shared = int(found[4]) if int(number) < 90 else max(0, int(found[4]) - 1024)
        results.append(use(kernel))
    return compiler[1].decode() if compiler else "", results


def read_library(library: Path, use: Callable[[Kernel], dict | list]) -> tuple[str, list]:
    """``read_cubin`` of every cubin in a library, on all processors."""
    with tempfile.TemporaryDirectory() as folder:
        output_of(tool("cuobjdump"), "-xelf", "all", str(library.resolve()), cwd=folder)
        cubins = sorted(
            Path(folder).glob("*.cubin"), key=os.path.getsize, reverse=True
        )  # the longest ones first
        if not cubins:
            raise ValueError(f"{library} has no CUDA code")
        with ProcessPoolExecutor() as pool:
            read = list(pool.map(read_cubin, map(str, cubins), [use] * len(cubins)))
    compilers = sorted({compiler for compiler, results in read if results})
    return " ".join(compilers), [result for _, results in read for result in results]
