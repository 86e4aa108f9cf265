"""Static facts of the compiled CUDA kernels: registers, spills, occupancy, access widths, instructions.

python benchmarks/sass.py [--library PATH] [--write]: see README.md beside this file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))

from sass_listing import LOCAL, Kernel, read_library  # noqa: E402
from sass_page import page  # noqa: E402
from sass_path import in_flight, main_path, widths  # noqa: E402
from sass_rules import KERNELS, elements_of, family, occupancy, threads_of, violations  # noqa: E402

TABLE, PAGE = HERE / "results" / "sass.json", HERE / "results" / "sass.md"
NAMESPACES = re.compile(r"\(anonymous namespace\)::|transcast::cuda::|transcast::|^void ")


def facts_of(kernel: Kernel) -> dict:
    """The kernel's row; its name is still mangled."""
    code = list(kernel.instructions())
    path = main_path(kernel) if has_main_path(kernel.name) else []
    return {
        "kernel": kernel.name,
        "arch": kernel.arch,
        "bound": kernel.threads,
        "registers": kernel.registers,
        "static_shared": kernel.shared,
        "stack": kernel.stack,
        "local": sum(instruction.base in LOCAL for instruction in code),
        "instructions": len(code),
        "loads": _sorted(widths(code, "load")),
        "stores": _sorted(widths(code, "store")),
        "meeting": [instruction.meeting for instruction in code if instruction.meeting],
        "main": {
            "instructions": len(path),
            "loads": _sorted(widths(path, "load")),
            "stores": _sorted(widths(path, "store")),
            "in_flight": in_flight(path),
        },
    }


def has_main_path(mangled: str) -> bool:
    """Whether the kernel is one of those whose tile is unrolled; the others are loops over single elements."""
    return any(shape.elements and name in mangled for name, shape in KERNELS.items())


def _sorted(counts: dict[int, int]) -> dict[str, int]:
    return {str(bits): counts[bits] for bits in sorted(counts)}


def readable(names: list[str]) -> dict[str, str]:
    """rows_kernel<Plain<bf16>, Aligned, e4m3> for a mangled name."""
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    clear = {}
    for name, demangled in zip(names, done.stdout.splitlines(), strict=True):
        short = NAMESPACES.sub("", demangled)
        short = short[: short.index(">(") + 1] if ">(" in short else short.partition("(")[0]
        short = re.sub(r"\b(F32|BF16|F16|E4M3|E5M2)\b", lambda found: found[0].lower(), short)
        clear[name] = short
    return clear


def finished(row: dict) -> dict:
    """The row with what follows from how its kernel is launched."""
    shape = KERNELS.get(family(row["kernel"]))
    if shape is None:
        return row
    main = row["main"]
    elements = elements_of(row)
    shared = row.pop("static_shared") + shape.shared
    return {
        **row,
        "threads": threads_of(row["kernel"]),
        "shared": shared,
        "occupancy": [occupancy(row["arch"], t, row["registers"], shared) for t in threads_of(row["kernel"])],
        "main": {
            **main,
            "elements": elements,
            "per_element": round(main["instructions"] / max(elements, 1), 1),
        },
    }


def merged(rows: list[dict]) -> list[dict]:
    """e4m3 and e5m2 as one row, fp8, where all facts are the same."""
    by_name = {(row["kernel"], row["arch"]): row for row in rows}
    kept = []
    for (kernel, arch), row in by_name.items():
        twin = by_name.get((kernel.replace("e4m3", "e5m2"), arch))
        if re.search(r"\be4m3\b", kernel) and twin and {**twin, "kernel": kernel} == row:
            row = {**row, "kernel": kernel.replace("e4m3", "fp8")}
        elif re.search(r"\be5m2\b", kernel):
            other = by_name.get((kernel.replace("e5m2", "e4m3"), arch))
            if other and {**other, "kernel": kernel} == row:
                continue
        kept.append(row)
    return kept


def read(library: Path) -> dict:
    """The table of a library: ``nvcc`` (its version), ``archs``, ``rows`` (one for each kernel and arch)."""
    nvcc, rows = read_library(library, facts_of)
    names = readable([row["kernel"] for row in rows])
    rows = [finished({**row, "kernel": names[row["kernel"]]}) for row in rows]
    rows.sort(key=lambda row: (row["kernel"], float(row["arch"])))
    archs = sorted({row["arch"] for row in rows}, key=float)
    return {"nvcc": nvcc, "archs": archs, "rows": merged(rows)}


def as_json(table: dict) -> str:
    rows = ",\n".join("  " + json.dumps(row) for row in table["rows"])
    head = json.dumps({"nvcc": table["nvcc"], "archs": table["archs"]})
    return f'{head[:-1]}, "rows": [\n{rows}\n]}}\n'


def differences(table: dict, committed: dict) -> list[str]:
    """Facts of ``table`` that ``committed`` states differently, for the archs that ``table`` has."""
    rows = {(row["kernel"], row["arch"]): row for row in table["rows"]}
    others = {(row["kernel"], row["arch"]): row for row in committed["rows"] if row["arch"] in table["archs"]}
    different = []
    for name in sorted(rows.keys() | others.keys()):
        ours, theirs = rows.get(name, {}), others.get(name, {})
        for fact in dict.fromkeys([*ours, *theirs]):
            if ours.get(fact) != theirs.get(fact):
                different.append(f"{name[0]} for {name[1]}: {fact} {ours.get(fact)}, not {theirs.get(fact)}")
    return different


def built_library() -> Path:
    """``_cuda`` of the transcast that this Python would import."""
    package = importlib.util.find_spec("transcast")
    found = sorted(Path(package.origin).parent.glob("_cuda*.so")) if package else []
    if not found:
        sys.exit("sass: there is no transcast/_cuda*.so (built without nvcc?); --library names another file")
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, help="a compiled _cuda*.so; the installed one if not given")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name} and {PAGE.name}")
    arguments = parser.parse_args()
    table = read(arguments.library or built_library())
    print(page(table), end="")
    if arguments.write:
        TABLE.write_text(as_json(table))
        PAGE.write_text(page(table))
    elif table["nvcc"] == (committed := json.loads(TABLE.read_text()))["nvcc"]:
        print(f"{len(differences(table, committed))} differences from {TABLE.name}", file=sys.stderr)
    wrong = [what for row in table["rows"] for what in violations(row)]
    if wrong:
        sys.exit("\n".join(["sass: the rules are broken", *wrong]))


if __name__ == "__main__":
    main()
