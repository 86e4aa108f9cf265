#!/usr/bin/env bash
# Builds transcast for the GPU of this machine, checks it and benchmarks it; benchmarks/README.md says how to read
# what it leaves in OUTDIR.
#
#   benchmarks/gpu_check.sh OUTDIR [--quick] [--dry] [--only STEP,STEP] [--torchao FOLDER_OR_WHEEL] [--limit SECONDS]
#
# Needs a Python with torch (PYTHON names it), nvcc, cmake, ninja, pybind11, pytest and hypothesis; no network.
# Exit code: 0 if all that was to be right is, 1 if something is wrong or was not reached, 2 for wrong arguments.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH="$root/python:$root/benchmarks:$root/benchmarks/gpu:$root/tests${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1
exec "${PYTHON:-python3}" "$root/benchmarks/gpu/check.py" "$@"
