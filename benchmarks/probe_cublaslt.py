"""Asks cuBLASLt which FP8 products it has an algorithm for, and runs those that transcast uses.

    python benchmarks/probe_cublaslt.py --name probe --out rows.jsonl [--lib libcublasLt.so.13] [--dry-run]

Needs torch and a GPU, not transcast. With --dry-run every descriptor is created on the real library, each of
its attributes is set and read back, nothing is asked, and torch multiplies in FP32 in the library's place:
that needs no GPU.
"""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "gpu")]

import lt_runs  # noqa: E402
import record  # noqa: E402
import torch  # noqa: E402
from cublaslt import CublasLt, find_library  # noqa: E402
from lt_query import Query  # noqa: E402
from queries import BLOCKS_SINCE, native, non_finite, ours, queries  # noqa: E402
from record import Step  # noqa: E402

DEFAULT = Query()


def asked(query: Query) -> dict:
    """What sets a query apart from the plainest one."""
    values = {f.name: getattr(query, f.name) for f in fields(Query)}
    return {name: value for name, value in values.items() if value != getattr(DEFAULT, name)}


def ask(step: Step, lt: CublasLt) -> None:
    accepted = total = 0
    for section, query in queries():
        with lt.product(query) as product:
            answers = [] if step.dry else [product.ask(), product.ask()]
        total += 1
        entry = {"op": "heuristic", "section": section, "query": asked(query)}
        if answers:
            first, second = answers
            chosen = first.results[0] if first.results else None
            accepted += chosen is not None
            same = [[bytes(r.algo) for r in answer.results] for answer in answers]
            entry |= {"status": first.status, "found": len(first.results), "repeatable": same[0] == same[1]}
            entry |= {
                "workspace": chosen.workspace if chosen else None,
                "waves": chosen.waves if chosen else None,
            }
            entry["algo"] = bytes(chosen.algo).hex() if chosen else None
        step.row(**entry)
    step.row(op="queries", total=total, accepted=None if step.dry else accepted, cublaslt=lt.version)


def judged(found: dict, own: bool) -> str:
    """Products that transcast asks for have to be computed, and right; of others a row says what they are."""
    refused, right = found["ok"] is None, found.pop("ok")
    found |= {"native": own, "right": right, "ok": right is True if own else None}
    return "recorded" if not own else "refused" if refused else "right" if right else "wrong"


def run(step: Step, lt: CublasLt | None) -> None:
    def multiply(run: lt_runs.Run) -> str:
        if step.dry:
            run.compute()
            return "SUCCESS"
        return on_the_gpu(lt, run)

    counts = {"right": 0, "wrong": 0, "refused": 0, "recorded": 0}
    device = step.facts.get("capability", "9.0"), lt.version if lt else BLOCKS_SINCE
    for query, beta in ours():
        if step.dry:
            query = replace(query, m=min(query.m, 48), n=min(query.n, 32), k=min(query.k, 160))

        def one() -> None:
            found = lt_runs.verdict(query, beta, step.device, multiply)
            counts[judged(found, native(query, *device))] += 1
            step.failures += found["ok"] is False
            step.row(op="product", query=asked(query), beta=beta, **found)

        step.attempt("product", one)
    step.row(op="products", **counts)
    for query in non_finite():

        def one() -> None:
            found = lt_runs.shows_nan(query, step.device, multiply)
            step.failures += found["d"] is False and native(query, *device)  # of amax nothing is expected
            step.row(op="nan", query=asked(query), **found)

        step.attempt("nan", one)


def on_the_gpu(lt: CublasLt, run: lt_runs.Run) -> str:
    with lt.product(run.query, run.pointers) as product:
        answer = product.ask()
        if not answer.results:
            return answer.status
        chosen = answer.results[0]
        workspace = torch.empty(max(16, chosen.workspace), dtype=torch.uint8, device="cuda")
        stream = torch.cuda.current_stream().cuda_stream
        c = run.d if run.beta else run.c
        addresses = (t.data_ptr() for t in (run.a, run.b, c, run.d))
        status = product.run(chosen, *addresses, run.beta, workspace.data_ptr(), stream)
        torch.cuda.synchronize()
        return status


def main(argv: list[str] | None = None) -> None:
    options = record.parser(__doc__.splitlines()[0])
    options.add_argument("--dry-run", dest="dry", action="store_true", help="the same as --dry")
    options.add_argument("--lib", help="libcublasLt; without it torch's own is looked for")
    chosen = options.parse_args(argv)
    step = record.step_of(chosen)
    try:
        lt = CublasLt(chosen.lib or find_library(), step.dry)
    except OSError as error:
        step.row(op="queries", missing=f"no cuBLASLt: {error}")
        if not step.dry:
            sys.exit(1)
        lt = None
    if lt:
        ask(step, lt)
    run(step, lt)
    sys.exit(1 if step.failures else 0)


if __name__ == "__main__":
    main()
