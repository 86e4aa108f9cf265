"""Mutations found in the sources, not listed: every barrier, shuffle mask and bound; controls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from mutations import CONTROL, CUDA, Mutation

SHADOWED = {"launch.cuh", "vec.cuh"}  # the emulator has its own
BARRIER = "__syncthreads();"
GEMM_TESTS = ("--backend", "emu", "tests/test_gemm_fp8.py", "tests/test_gemm_out.py", "tests/test_gemm_scales.py")


def sources() -> Iterator[tuple[str, str]]:
    """Name and text of each file with kernels."""
    for path in sorted(CUDA.iterdir()):
        if path.suffix in (".cu", ".cuh") and path.name not in SHADOWED:
            yield path.name, path.read_text()


def line_of(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def units_of(line: str) -> tuple[str, ...]:
    """Only the gradients of swiglu have a second part."""
    return ("pass_gradient",) if "part > 0" in line else ()


def barriers() -> Iterator[Mutation]:
    for file, text in sources():
        places = [match.start() for match in re.finditer(re.escape(BARRIER), text)]
        for nth, place in enumerate(places):
            where = f"{file}:{line_of(text, place)}"
            units = units_of(text.splitlines()[line_of(text, place) - 1])
            for kind, new in (
                ("missing barrier", ";"),
                ("divergent barrier", f"if (threadIdx.x < 32) {BARRIER}"),
            ):
                yield Mutation(kind, where, file, BARRIER, new, len(places), nth, units)


def masks() -> Iterator[Mutation]:
    old = "_sync(kAllLanes"
    for file, text in sources():
        places = [match.start() for match in re.finditer(re.escape(old), text)]
        for nth, place in enumerate(places):
            where = f"{file}:{line_of(text, place)} (shuffle {nth + 1} of the file)"
            yield Mutation("shuffle mask", where, file, old, "_sync(0xffffu", len(places), nth)


def arguments_of(text: str, start: int) -> tuple[int, list[str]]:
    """The arguments of the call whose '(' is at ``start``, and where its ')' is."""
    depth, pieces, begin, at = 0, [], start + 1, start
    while True:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at, [*pieces, text[begin:at]]
        if depth == 1 and text[at] == ",":
            pieces.append(text[begin:at])
            begin = at + 1
        at += 1


def bounds() -> Iterator[Mutation]:
    """The predicate of each load and store: left out, and one further at each of its comparisons."""
    for file, text in sources():
        for match in re.finditer(r"\b(ldg|stg)\(", text):
            end, arguments = arguments_of(text, match.end() - 1)
            predicate = arguments[-1].strip()
            if predicate == "true":
                continue
            call = text[match.start() : end + 1]
            where, times = f"{file}:{line_of(text, match.start())}", text.count(call)
            changed = {"missing bound": "true"}
            for i, comparison in enumerate(re.finditer(r" (<=?) ", predicate)):
                further = " <= " if comparison[1] == "<" else " <= 1 + "
                before, after = predicate[: comparison.start()], predicate[comparison.end() :]
                changed[f"bound off by one ({i + 1})"] = before + further + after
            for kind, new in changed.items():
                head = call[: call.rindex(predicate)]
                name = f"{where}: {predicate} -> {new}"
                yield Mutation(kind.split(" (")[0], name, file, call, f"{head}{new})", times)


def unwritten_sums() -> Iterator[Mutation]:
    """The column sums of one tile more than there are: nobody writes them, and poison is a small number."""
    file = "passes.cuh"
    from_allocation_to_use = r"row_tiles\)? \* args\.out_cols.*?add_sums\(context, sums, row_tiles"
    old = re.search(from_allocation_to_use, (CUDA / file).read_text(), re.S)[0]
    new = re.sub("^row_tiles", "(row_tiles + 1)", old) + " + 1"
    yield Mutation("unwritten memory", "sums of a tile that is not there", file, old, new)


def controls() -> Iterator[Mutation]:
    """Each unit compiled and linked as its mutants are, and nothing wrong with it."""
    for file, text in sources():
        if file.endswith(".cu") and file != "device.cu":  # which asks the machine, and is not emulated
            old = text.split("\n", 1)[0]
            times, reason = text.count(old), "nothing is changed but a comment"
            yield Mutation(CONTROL, file, file, old, f"{old}  // the same", times, 0, survives=reason)


def with_tests(mutation: Mutation) -> Mutation:
    """Tests of GEMMs for what is around them."""
    return replace(mutation, tests=GEMM_TESTS) if mutation.file.startswith("gemm") else mutation


def all_found() -> list[Mutation]:
    return [with_tests(m) for m in (*barriers(), *masks(), *bounds(), *unwritten_sums(), *controls())]
