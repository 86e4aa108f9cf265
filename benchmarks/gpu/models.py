"""A decoder in the manner of Llama 3: RMSNorm, rotary grouped-query attention, SwiGLU, no biases."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Size:
    dim: int
    heads: int
    kv_heads: int
    hidden: int
    layers: int
    vocabulary: int


LLAMA_8B = Size(4096, 32, 8, 14336, 32, 128256)
LLAMA_1B = Size(2048, 32, 8, 8192, 16, 128256)
TINY = Size(64, 4, 2, 96, 2, 128)


def rotary_table(size: Size, seq: int) -> tuple[Tensor, Tensor]:
    half = size.dim // size.heads // 2
    angle = torch.outer(torch.arange(seq), 500_000.0 ** -(torch.arange(half) / half))
    return angle.cos().bfloat16(), angle.sin().bfloat16()


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = table
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class DecoderLayer(nn.Module):
    """(batch, seq, dim) -> the same shape."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head = size.dim // size.heads
        kv = size.kv_heads * self.head
        self.attention_norm, self.mlp_norm = nn.RMSNorm(size.dim), nn.RMSNorm(size.dim)
        self.q, self.out = (nn.Linear(size.dim, size.dim, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(size.dim, kv, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(size.dim, size.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(size.hidden, size.dim, bias=False)

    def attention(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        q, k = rotate(q, table), rotate(k, table)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.attention_norm(x), table)
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class LanguageModel(nn.Module):
    """Tokens (batch, seq) -> logits (batch, seq, vocabulary); the embedding is the output layer, too."""

    def __init__(self, size: Size, seq: int) -> None:
        super().__init__()
        self.table = rotary_table(size, seq)
        self.embedding = nn.Embedding(size.vocabulary, size.dim)
        self.layers = nn.ModuleList(DecoderLayer(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.dim)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.table)
        return F.linear(self.norm(x), self.embedding.weight)
