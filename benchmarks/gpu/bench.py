"""Runs benchmarks of the check: ``bench.py kernels products ... --name STEP --out FILE``."""

from __future__ import annotations

import sys

import kernels
import layers
import products
import record
import torch
import training

PARTS = {"kernels": kernels.run, "products": products.run, "layers": layers.run, "training": training.run}


def main(argv: list[str] | None = None) -> None:
    options = record.parser(__doc__)
    options.add_argument("parts", nargs="+", choices=PARTS)
    chosen = options.parse_args(argv)
    step = record.step_of(chosen)
    for part in chosen.parts:
        PARTS[part](step)
        if step.device == "cuda":
            torch.cuda.empty_cache()
    sys.exit(1 if step.failures else 0)


if __name__ == "__main__":
    main()
