"""The main path of a kernel: what a thread issues for a tile that lies wholly inside of the matrix."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from sass_listing import ATOMIC, INDIRECT, Block, Instruction, Kernel

WIDE = 128  # bits


def loads(instructions: Iterable[Instruction], wide: bool) -> int:
    return sum(i.access[0] == "load" and (i.access[1] >= WIDE) == wide for i in instructions if i.access)


def order_of(blocks: list[Block]) -> tuple[list[int], set[tuple[int, int]]]:
    """Blocks reachable from the first, each before its successors, and the edges that close a loop."""
    order, closing = [], set()
    entered, left = {0}, set()
    stack = [(0, iter(blocks[0].next))]
    while stack:
        here, following = stack[-1]
        for there in following:
            if there not in entered:
                entered.add(there)
                stack.append((there, iter(blocks[there].next)))
                break
            if there not in left:
                closing.add((here, there))
        else:
            stack.pop()
            left.add(here)
            order.append(here)
    return order[::-1], closing


def loop_of(blocks: list[Block], order: list[int], closing: set[tuple[int, int]], head: int) -> set[int]:
    """The loop of ``head``: all blocks from which it is entered again without passing it on the way."""
    before: dict[int, list[int]] = {}
    for here in order:
        for there in blocks[here].next:
            before.setdefault(there, []).append(here)
    loop = {head}
    waiting = [latch for latch, target in closing if target == head]
    while waiting:
        here = waiting.pop()
        if here not in loop:
            loop.add(here)
            waiting.extend(before.get(here, []))
    return loop


def main_path(kernel: Kernel) -> list[Instruction]:
    """One turn of the innermost loop that loads global memory. Without such a loop: the way from the first
    instruction to the first atomic one, where blocks meet.

    Of several ways it is the one with the most 16-byte loads, then with the fewest narrower ones (they bring
    in the edges of a matrix), then with the fewest calls (of compiler functions, for rare operands), then
    the longest. Loops on that way count once.
    """
    blocks = kernel.blocks
    if any(instruction.base in INDIRECT for instruction in kernel.instructions()):
        raise ValueError(f"{kernel.name}: a branch to a computed address cannot be followed")
    order, closing = order_of(blocks)
    wide = any(loads(block.instructions, True) for block in blocks)

    def loaded(loop: set[int]) -> int:
        return sum(loads(blocks[b].instructions, wide) for b in loop)

    loops = [loop_of(blocks, order, closing, head) for head in {head for _, head in closing}]
    loops = [loop for loop in loops if loaded(loop)]
    inner = [loop for loop in loops if not any(other < loop for other in loops)]
    region = max(inner, key=lambda loop: (loaded(loop), len(loop)), default=set(order))
    head = next(block for block in order if block in region)
    ends = {latch for latch, target in closing if target == head and latch in region}
    path = _best(blocks, [b for b in order if b in region], closing, ends, head, wide)
    code = [instruction for block in path for instruction in blocks[block].instructions]
    meeting = next((n for n, i in enumerate(code) if i.base in ATOMIC), len(code))
    return code if inner else code[:meeting]


def _best(
    blocks: list[Block],
    order: list[int],
    closing: set[tuple[int, int]],
    ends: set[int],
    head: int,
    wide: bool,
) -> list[int]:
    """The best way from ``head`` to one of ``ends``, or to an exit if there are none."""
    best: dict[int, tuple[tuple[int, ...], int | None]] = {}
    for here in reversed(order):
        onward = [n for n in blocks[here].next if n in best and (here, n) not in closing]
        if not onward and not (here in ends if ends else not blocks[here].next):
            continue
        code = blocks[here].instructions
        calls = sum(i.base == "CALL" and not i.predicate for i in code)
        narrow = loads(code, False)
        own = (loads(code, True), -narrow, -calls, len(code)) if wide else (narrow, 0, -calls, len(code))
        rest, following = max(((best[n][0], n) for n in onward), default=((0, 0, 0, 0), None))
        best[here] = (tuple(map(sum, zip(own, rest, strict=True))), following)
    path, here = [], head
    while here is not None:
        path.append(here)
        here = best[here][1]
    return path


def widths(code: Iterable[Instruction], kind: str) -> Counter[int]:
    """How many "load"s or "store"s of global memory have which number of bits."""
    return Counter(i.access[1] for i in code if i.access and i.access[0] == kind)


def in_flight(path: list[Instruction]) -> int:
    """16-byte loads on the path before the first instruction that uses what one of them has loaded."""
    loaded: set[str] = set()
    count = 0
    for instruction in path:
        first, *others = re.findall(r"\bU?R\d+\b|,", instruction.operands) or [""]
        if instruction.access and instruction.access[0] == "load" and instruction.access[1] >= WIDE:
            count += 1
            loaded |= {f"R{int(first[1:]) + n}" for n in range(instruction.access[1] // 32)}
        elif loaded.intersection(others if instruction.base not in ("STG", "STS") else [first, *others]):
            break
    return count
