"""CUDA graphs: replays against eager mode; run as a program, a process whose first product is captured."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

import gemm_checks
import torch
import transcast as tc
from conftest import Backend
from torch import Tensor

Call = Callable[[], object]


def captured(call: Call) -> Call:
    """``call`` as a CUDA graph; warmed up on another stream first, as capture demands."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def check_replay(device: torch.device, shape: tuple[int, int, int], capture: Callable[[Call], Call]) -> None:
    """A replay of FP8Linear computes what eager mode computes, from new input in the same place."""
    torch.manual_seed(0)
    m, n, k = shape
    layer = tc.FP8Linear(k, n, dtype=torch.bfloat16).to(device)
    x, grad = (torch.randn(m, width).bfloat16().to(device) for width in (k, n))
    leaves = [x.requires_grad_(), layer.weight, layer.bias]
    results: list[Tensor] = []

    def step() -> None:
        y = layer(x)
        results[:] = y.detach(), *torch.autograd.grad(y, leaves, grad)

    replay = capture(step)
    with torch.no_grad():
        x.copy_(x.flip(0) + 1)
    replay()
    replayed = [t.clone() for t in results]
    step()
    same = [torch.equal(a, b) for a, b in zip(replayed, results, strict=True)]
    assert all(same), f"y, dx, dweight and dbias of a replay equal those of eager mode: {same}"


class InAGraph:
    """Ops of which each call is captured, never run before, and replayed once."""

    def __init__(self, ops: object) -> None:
        self.ops = ops

    def __getattr__(self, name: str) -> Callable:
        def op(*args: object) -> Tensor:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = getattr(self.ops, name)(*args)
            graph.replay()
            return result.clone()  # its memory is the graph's

        return op


def main(argv: list[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", choices=("cpu", "cuda"), required=True)
    device = options.parse_args(argv).device
    backend = Backend(device, torch.ops.transcast, torch.device(device))
    if device == "cuda":
        backend = replace(backend, ops=InAGraph(backend.ops))
    gemm_checks.check_gemm(backend, gemm_checks.operands((64, 48, 96)), out_dtype=torch.bfloat16)


if __name__ == "__main__":
    main()
