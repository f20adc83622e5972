"""Tokens per second of greedy generation by the MAD model: two layers of width 128, vocabulary 16, bf16, one GPU.

    python -m mixerlab.benchmarks.generate --output results/benchmarks/generate

For each mixer and batch size, `--length` tokens from the first one on; a step is a captured CUDA graph
(`mixerlab.generate.TokenReader`). The peer is the model of `mixer=attn` in eager PyTorch with bf16 weights: its layers
called one by one, and SDPA over the filled part of a cache. Seconds are the median of three generations.
"""

from copy import deepcopy
from functools import partial
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mixerlab
from mixerlab.benchmarks.measuring import Table, milliseconds, options_on_gpu, parser_of
from mixerlab.benchmarks.peers import plain_block, rotary_angles
from mixerlab.generate import TokenReader
from mixerlab.records.names import MIXERS

PEER = "attn, eager PyTorch"


class EagerAttention:
    """Reads token by token what `model`, of `mixer=attn`, reads: the steps of a user who knows no kernels of ours."""

    def __init__(self, model: nn.Module, batch: int, length: int, dtype: torch.dtype = torch.float32):
        own: Any = deepcopy(model).to(dtype)
        self.model, device, mixers = own, own.head.weight.device, [block.mixer for block in own.blocks]
        self.caches = [
            torch.empty(2, batch, mixer.num_heads, length, mixer.head_dim, device=device, dtype=dtype)
            for mixer in mixers
        ]
        self.angles = rotary_angles(length, mixers[0].head_dim, device)
        self.restart()

    def restart(self) -> None:
        self.position = 0

    def step(self, tokens: Tensor) -> Tensor:
        """The logits `[B, 1, V]` of the next tokens, int64 `[B, 1]`."""
        x, t = self.model.embedding(tokens), self.position
        for block, cache in zip(self.model.blocks, self.caches, strict=True):

            def attend(q: Tensor, k: Tensor, v: Tensor, cache: Tensor = cache) -> Tensor:
                cache[0, :, :, t : t + 1], cache[1, :, :, t : t + 1] = k, v
                return F.scaled_dot_product_attention(q, *cache[:, :, :, : t + 1])

            x = plain_block(block, x, self.angles[t], attend)
        self.position += 1
        return self.model.head(self.model.norm(x))


def generated(reader: TokenReader | EagerAttention, tokens: Tensor, length: int) -> Tensor:
    """The likeliest tokens behind the first ones, `[B, 1]`: int64 `[B, length]`."""
    reader.restart()
    made = []
    for _ in range(length):
        tokens = reader.step(tokens).argmax(dim=-1)
        made.append(tokens)
    return torch.cat(made, dim=1)


@torch.no_grad()
def measure(mixer: str, batch: int, length: int) -> dict[str, object]:
    """One row of the table."""
    name, make = ("attn", partial(EagerAttention, dtype=torch.bfloat16)) if mixer == PEER else (mixer, TokenReader)
    model: Any = mixerlab.build_model(f"mixer={name}", "task=icr").eval().cuda()
    tokens = torch.randint(0, 16, (batch, 1), device="cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled=mixer != PEER):
        reader = make(model, batch, length)
        run = partial(generated, reader, tokens, length)
        run()
        taken = milliseconds(run, 3) / 1000
    return {
        "mixer": mixer,
        "B": batch,
        "length": length,
        "tokens_per_s": batch * length / taken,
        "us_per_step": 1e6 * taken / length,
        "graph": getattr(reader, "is_captured", False),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--mixers", nargs="+", default=[*MIXERS, PEER])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64, 512])
    parser.add_argument("--length", type=int, default=1024)
    options = options_on_gpu(parser)
    table = Table(options.output, "generate")
    for mixer in options.mixers:
        for batch in options.batches:
            table.add(measure(mixer, batch, options.length))
            torch.cuda.empty_cache()
    rows = pd.read_csv(table.path)
    shown = rows[rows["run"] == table.run].pivot(index="mixer", columns="B", values="tokens_per_s")
    print(shown.reindex(options.mixers).round(0).astype(int).to_string())


if __name__ == "__main__":
    main()
