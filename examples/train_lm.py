"""Train a small language model twice, with nn.Linear and with FP8Linear, and compare.

A Llama-style decoder (RMSNorm, rotary attention, SwiGLU) learns Python byte by byte, from the sources of the
standard library. Both runs start from the same weights and see the same batches. What makes the second one
FP8 is a single line:

    tc.convert(model, recipe="tensorwise")

The result is a table of losses, speed and memory, the loss curves in train_lm.png, and a few lines written by
the FP8 model after tc.quantize_weights_, that is with one byte per weight.

    python examples/train_lm.py                                    two CPU cores: about three minutes
    python examples/train_lm.py --size medium --device cuda        a GPU: larger model, bf16 autocast
    python examples/train_lm.py --text ~/my_project --steps 2000   other text: .py, .txt and .md files
"""

import argparse
import math
import statistics
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from matplotlib.figure import Figure

import transcast as tc

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

SIZES = {"tiny": (64, 2, 2), "small": (256, 2, 8), "medium": (1024, 12, 16)}  # dim, layers, heads
PROMPT = "import os\n\n\ndef "
MIB = 2**20

Args = argparse.Namespace
Batch = tuple[torch.Tensor, torch.Tensor]  # inputs and targets, each (batch, seq) int64


# ---------------------------------------------------------------------------------------------- model


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of x (..., seq, dim) by tables (seq, dim / 2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


class SwiGLU(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        hidden = 32 * round(dim * 8 / 3 / 32)
        self.gate_up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attention, self.mlp = Attention(dim, heads), SwiGLU(dim)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    """Bytes (batch, seq) int64 -> logits (batch, seq, 256) of the byte that follows each."""

    def __init__(self, dim: int, layers: int, heads: int, seq: int):
        super().__init__()
        self.embedding = nn.Embedding(256, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(dim)
        self.lm_head = nn.Linear(dim, 256, bias=False)  # tc.convert skips this name: high precision
        half = dim // heads // 2
        angle = torch.outer(torch.arange(seq), 10_000.0 ** -(torch.arange(half) / half))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        nn.init.normal_(self.embedding.weight, std=0.3)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                # out and down add to x, twice per block: their sum is not to grow with the depth.
                terms = 2 * layers if name.endswith((".out", ".down")) else 1
                nn.init.normal_(module.weight, std=(module.in_features * terms) ** -0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.lm_head(self.norm(x))


# ----------------------------------------------------------------------------------------------- text


def read_text(folder: Path, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes for training and for validation: the text files in order of their names, every 16th held out."""
    # Installed packages and tests differ between machines; encodings and pydoc_data are tables, not code.
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"}
    paths = [p for p in sorted(folder.rglob("*")) if p.suffix in {".py", ".txt", ".md"} and p.is_file()]
    files = [p.read_bytes() for p in paths if not left_out & set(p.relative_to(folder).parts)]
    every = max(2, min(16, len(files)))
    held_out = b"".join(files[every - 1 :: every])[:MIB]
    text = b"".join(file for i, file in enumerate(files, 1) if i % every)[: 16 * MIB]
    if min(len(text), len(held_out)) <= seq:
        have = f"{len(text)} bytes for training and {len(held_out)} for validation"
        sys.exit(f"{folder}: each part needs more than --seq {seq} bytes, got {have}")
    return tuple(torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in (text, held_out))


def windows(text: torch.Tensor, starts: torch.Tensor, seq: int) -> Batch:
    """From each start the next seq bytes, and the same one byte further on."""
    tokens = text[starts[:, None] + torch.arange(seq + 1)].long()
    return tokens[:, :-1], tokens[:, 1:]


def training_batches(text: torch.Tensor, args: Args) -> Iterator[Batch]:
    order = torch.Generator().manual_seed(args.seed)
    for _ in range(args.steps):
        yield windows(text, torch.randint(len(text) - args.seq, (args.batch,), generator=order), args.seq)


def validation_batches(text: torch.Tensor, args: Args) -> Iterator[Batch]:
    starts = torch.linspace(0, len(text) - args.seq - 1, 32 * args.batch).long()
    return (windows(text, part, args.seq) for part in starts.split(args.batch))


# ------------------------------------------------------------------------------------------- training


@dataclass
class Run:
    label: str
    losses: list[float]  # nats per byte, one per step
    validation_loss: float
    tokens_per_second: float
    saved_bytes: int
    weight_bytes: int

    @property
    def training_loss(self) -> float:
        return statistics.mean(self.losses[-max(1, len(self.losses) // 10) :])


def train(label: str, model: nn.Module, text: torch.Tensor, held_out: torch.Tensor, args: Args) -> Run:
    saved_bytes = bytes_saved_for_backward(model, next(training_batches(text, args)), args)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, (0.9, 0.95), weight_decay=0.1, fused=True)
    warmup = 1 + args.steps // 20
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * step / args.steps))
    )
    every = max(1, min(10, args.steps // 5))  # reading a loss waits for the device, so not after each step
    losses, clock = [], [time.perf_counter()]
    bar = (tqdm or PlainBar)(total=args.steps, desc=f"{label:16}", unit="step", mininterval=0.5)
    for step, batch in enumerate(training_batches(text, args), 1):
        loss = loss_of(model, batch, args)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.detach())
        bar.update()
        if step % every == 0:
            bar.set_postfix_str(f"loss {loss.item():.3f}")
            clock.append(time.perf_counter())
    bar.close()
    with torch.no_grad():
        validation = [loss_of(model, batch, args).item() for batch in validation_batches(held_out, args)]
    # The median keeps the first steps, and whatever else the machine was busy with, out of the speed.
    seconds = statistics.median(end - start for start, end in zip(clock, clock[1:])) / every
    speed = args.batch * args.seq / seconds
    losses = torch.stack(losses).tolist()
    return Run(label, losses, statistics.mean(validation), speed, saved_bytes, bytes_of_weights(model))


def loss_of(model: nn.Module, batch: Batch, args: Args) -> torch.Tensor:
    inputs, targets = (t.to(args.device) for t in batch)
    with torch.autocast(args.device.type, torch.bfloat16, enabled=args.dtype == "bf16"):
        logits = model(inputs)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class PlainBar:
    """Stands in for tqdm where that is not installed."""

    def __init__(self, total: int, desc: str, **_):
        self.total, self.desc, self.done, self.note = total, desc, 0, ""

    def update(self) -> None:
        self.done += 1
        filled = "#" * (40 * self.done // self.total)
        sys.stderr.write(f"\r{self.desc} [{filled:40}] {self.done}/{self.total} {self.note}")
        sys.stderr.flush()

    def set_postfix_str(self, note: str) -> None:
        self.note = note

    def close(self) -> None:
        sys.stderr.write("\n")


# -------------------------------------------------------------------------------------------- memory


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Address and bytes of each piece of memory behind the tensors; views of one piece count once."""
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def bytes_of_weights(model: nn.Module) -> int:
    return sum(storages(model.state_dict().values()).values())


def bytes_saved_for_backward(model: nn.Module, batch: Batch, args: Args) -> int:
    """What one step keeps from its forward to its backward, beside the model's own tensors."""
    saved = []  # holds them all, so that no address is given out twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss_of(model, batch, args)
    own = storages([*model.parameters(), *model.buffers()])
    return sum(size for address, size in storages(saved).items() if address not in own)


# -------------------------------------------------------------------------------------------- results


def print_table(base: Run, fp8: Run, inference_bytes: int) -> None:
    rows = (
        ("training loss, last tenth", ".4f", base.training_loss, fp8.training_loss),
        ("validation loss", ".4f", base.validation_loss, fp8.validation_loss),
        ("tokens/s", ",.0f", base.tokens_per_second, fp8.tokens_per_second),
        ("MiB saved for backward", ".2f", base.saved_bytes / MIB, fp8.saved_bytes / MIB),
        ("MiB of weights, training", ".2f", base.weight_bytes / MIB, fp8.weight_bytes / MIB),
        ("MiB of weights, inference", ".2f", base.weight_bytes / MIB, inference_bytes / MIB),
    )
    print(f"\n{'':26}{base.label:>16}{fp8.label:>16}{'difference':>12}")
    for name, form, a, b in rows:
        print(f"{name:26}{a:>16{form}}{b:>16{form}}{b / a - 1:>+12.2%}")


def plot(base: Run, fp8: Run, path: Path) -> None:
    window = max(1, len(base.losses) // 25)
    figure = Figure(figsize=(8, 6), layout="constrained")
    curves, gap = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    for run, color, style in ((base, "tab:blue", "-"), (fp8, "tab:orange", "--")):
        steps = range(1, len(run.losses) + 1)
        label = f"{run.label}: validation loss {run.validation_loss:.3f}"
        curves.plot(steps, run.losses, color=color, linewidth=0.6, alpha=0.3)
        curves.plot(steps, smooth(run.losses, window), style, color=color, linewidth=1.8, label=label)
    curves.set(title="The same training with and without FP8", ylabel="training loss, nats per byte")
    curves.legend(title=f"thin: every step, thick: mean of {window}")
    relative = [100 * (b / a - 1) for a, b in zip(smooth(base.losses, window), smooth(fp8.losses, window))]
    gap.axhline(0, color="tab:blue", linewidth=1)
    gap.plot(steps, relative, color="tab:orange")
    gap.set(xlabel="step", ylabel="FP8 above\nnn.Linear, %")
    for axes in (curves, gap):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def smooth(values: list[float], window: int) -> list[float]:
    """The mean of the values around each, fewer than `window` at both ends."""
    ranges = ((max(0, i - window // 2), i + (window + 1) // 2) for i in range(len(values)))
    return [statistics.mean(values[start:end]) for start, end in ranges]


@torch.no_grad()
def write_text(model: nn.Module, prompt: str, length: int, args: Args) -> str:
    """The prompt and `length` more bytes, drawn at temperature 0.8."""
    chance = torch.Generator().manual_seed(args.seed)
    text = list(prompt.encode())
    for _ in range(length):
        logits = model(torch.tensor([text[-args.seq :]], device=args.device))[0, -1]
        text.append(torch.multinomial((logits.float() / 0.8).softmax(-1).cpu(), 1, generator=chance).item())
    return bytes(text).decode(errors="replace")


# ----------------------------------------------------------------------------------------------- main


def size(text: str) -> tuple[int, int, int]:
    dim, layers, heads = SIZES[text] if text in SIZES else map(int, text.split("x"))
    if min(dim, layers, heads) < 1 or dim % (2 * heads):
        raise argparse.ArgumentTypeError(f"dim {dim} is not an even multiple of heads {heads}")
    return dim, layers, heads


def arguments() -> Args:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--size", type=size, default="small", help=f"{', '.join(SIZES)}, or DIMxLAYERSxHEADS")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=8, help="sequences per step")
    parser.add_argument("--seq", type=int, default=128, help="bytes per sequence")
    parser.add_argument("--lr", type=float, help="peak learning rate, default 0.5 / dim")
    parser.add_argument("--recipe", default="tensorwise", help="how FP8 tensors get their scales")
    parser.add_argument("--device", type=torch.device, default="cpu")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), help="bf16: autocast, default on cuda")
    parser.add_argument("--text", type=Path, default=sysconfig.get_path("stdlib"), metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the order of the data")
    parser.add_argument("--out", type=Path, default="train_lm.png", metavar="PNG")
    args = parser.parse_args()
    args.lr = args.lr or 0.5 / args.size[0]
    args.dtype = args.dtype or ("bf16" if args.device.type == "cuda" else "fp32")
    return args


def main() -> None:
    args = arguments()

    def new_model() -> nn.Module:
        torch.manual_seed(args.seed)
        return Decoder(*args.size, args.seq).to(args.device)

    base_model = new_model()
    fp8_model = tc.convert(new_model(), recipe=args.recipe)
    text, held_out = read_text(args.text, args.seq)
    parameters = sum(p.numel() for p in base_model.parameters())
    print(f"{parameters:,} parameters, {len(text):,} bytes of text, {args.batch * args.seq:,} per step")

    base = train("nn.Linear", base_model, text, held_out, args)
    fp8 = train(f"FP8 {args.recipe}", fp8_model, text, held_out, args)
    tc.quantize_weights_(fp8_model)
    print_table(base, fp8, bytes_of_weights(fp8_model))
    plot(base, fp8, args.out)
    print(f"\nloss curves: {args.out}\n\n{' written by the FP8 model ':-^80}")
    print(write_text(fp8_model, PROMPT, 300, args))


if __name__ == "__main__":
    main()
