"""A decoder layer of Llama 3 8B, and training steps of a 1B model, each with nn.Linear and with FP8Linear."""

from __future__ import annotations

import copy
from collections.abc import Callable

import rows
import torch
import torch.nn.functional as F
import transcast as tc
from clocks import clocks
from models import LLAMA_1B, LLAMA_8B, TINY, DecoderLayer, LanguageModel, rotary_table
from record import Step
from timing import Contender
from torch import Tensor, nn

BATCH, SEQ = 2, 4096
STEPS = 4  # whose losses are compared
LOSS_TOLERANCE = 0.05  # of a loss; casts cost a few thousandths in the first steps


def sizes(step: Step) -> tuple[int, int]:
    return (2, 16) if step.dry else (BATCH, SEQ)


def flops_of(model: nn.Module, tokens: int) -> int:
    """Of the linear layers, forward and backward."""
    return 6 * tokens * sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear))


def pair_row(op: str, shape: tuple[int, ...], ours: Contender, plain: Contender, flops: int) -> rows.Row:
    """nn.Linear's time is the ceiling: there is no other that both can be held to."""
    return rows.Row(op, shape, "bf16", ours, [plain], plain, flops, flops, "GFLOP/s")


def decoder_layer(step: Step) -> rows.Row:
    torch.manual_seed(0)
    batch, seq = sizes(step)
    size = TINY if step.dry else LLAMA_8B
    plain = DecoderLayer(size).bfloat16()
    fp8 = tc.convert(copy.deepcopy(plain))
    x = torch.randn(batch, seq, size.dim, dtype=torch.bfloat16, requires_grad=True)
    grad, table = torch.randn_like(x), rotary_table(size, seq)

    def contender(name: str, layer: nn.Module) -> Contender:
        def call() -> None:
            x.grad = None
            layer.zero_grad(set_to_none=True)
            layer(x, table).backward(grad)

        return Contender(name, call)

    flops = flops_of(plain, batch * seq)
    shape = (batch * seq, size.dim, size.hidden)
    return pair_row("decoder_layer", shape, contender("ours", fp8), contender("nn.Linear", plain), flops)


def trainer(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
    """One whole step: forward, loss, backward, optimizer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens, targets = batch

    def call() -> Tensor:
        loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return call


def models(step: Step) -> tuple[nn.Module, nn.Module, tuple[Tensor, Tensor]]:
    """The same 1B model with FP8Linear and with nn.Linear, and one batch."""
    torch.manual_seed(0)
    batch, seq = sizes(step)
    size = TINY if step.dry else LLAMA_1B
    plain = LanguageModel(size, seq).bfloat16()
    text = torch.randint(size.vocabulary, (batch, seq + 1))
    return tc.convert(copy.deepcopy(plain)), plain, (text[:, :-1].contiguous(), text[:, 1:].contiguous())


def training_step(step: Step) -> None:
    with torch.device(step.device):
        fp8, plain, data = models(step)
    steps = {"ours": trainer(fp8, data), "nn.Linear": trainer(plain, data)}
    losses = {name: [float(call()) for _ in range(STEPS)] for name, call in steps.items()}
    close = all(abs(a - b) <= LOSS_TOLERANCE * abs(b) for a, b in zip(*losses.values()))
    shape = tuple(data[0].shape)
    step.row(op="training_losses", shape=list(shape), ok=close, losses=losses)
    ours, other = (Contender(name, call) for name, call in steps.items())
    flops, parameters = flops_of(plain, data[0].numel()), sum(p.numel() for p in plain.parameters())
    row = pair_row("training_step_1b", shape, ours, other, flops)
    step.measure("training step", lambda: row, clocks(step.device).eager, "eager", parameters=parameters)
    assert close, f"losses of FP8 and BF16 differ by more than {LOSS_TOLERANCE:.0%}: {losses}"


def run(step: Step) -> None:
    step.measure("decoder layer", lambda: decoder_layer(step), clocks(step.device).eager, "eager")
    step.attempt("training", lambda: training_step(step))
