"""Training throughput of language models on one GPU, beside the same attention model in plain PyTorch.

    python -m mixerlab.benchmarks.language_model --output results/benchmarks/language_model

A step has 32,768 tokens in bf16, and Muon. The peer has PyTorch's layers and attention, torch.compile, torch.optim.Muon
and fused AdamW. Both steps are CUDA graphs: else the host's launches of torch.optim.Muon bound the peer.

Model FLOPs of a token are 6 for each weight of a linear layer, and three times those of mixing forward: `2 width T` for
attention (two products with half of the positions), twice as many for Parallax, and `6 width D_v` for gdn (to read, to
write and to query a state of D x D_v in each head, D_v = 2 D).
"""

import gc
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixerlab.benchmarks.measuring import Table, milliseconds, options_on_gpu, parser_of
from mixerlab.benchmarks.peers import for_muon, plain_block, rotary_angles
from mixerlab.benchmarks.throughput import Trial
from mixerlab.config.building import Parts, TaskShape
from mixerlab.config.compose import compose
from mixerlab.training.capture import Captured

SIZES = {"25M": (512, 8, 256), "110M": (768, 12, 16_384)}  # width, layers, vocabulary
MIXING: dict[str, Callable[[int, int, int], int]] = {  # FLOPs forward, by width, head size and length
    "attn": lambda width, head, length: 2 * width * length,
    "parallax": lambda width, head, length: 4 * width * length,
    "gdn": lambda width, head, length: 12 * width * head,
}
PEER = "attn, plain PyTorch"
TOKENS = 32_768  # of a step


class Peer:
    """Trains `model`, of `mixer=attn`, its layers called one by one, and compiled together."""

    def __init__(self, model: Any, length: int, device: torch.device):
        self.model = model.to(device)
        self.angles = rotary_angles(length, self.model.blocks[0].mixer.head_dim, device)
        hidden, rest = for_muon(self.model)
        self.optimizers = torch.optim.Muon(hidden, nesterov=False), torch.optim.AdamW(rest, fused=True, capturable=True)
        self.compiled = torch.compile(self.loss)

    def logits(self, tokens: Tensor) -> Tensor:
        x = self.model.embedding(tokens)
        for block in self.model.blocks:
            x = plain_block(block, x, self.angles, partial(F.scaled_dot_product_attention, is_causal=True))
        return self.model.head(self.model.norm(x))

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(tokens).flatten(0, 1).float(), targets.flatten())

    def step(self, rows: Tensor) -> Tensor:
        """Trains on tokens and targets, int64 `[2, B, T]`."""
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.compiled(*rows)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()


def measure(size: str, head: int, length: int, mixer: str) -> dict:
    """A row of the table."""
    width, layers, vocabulary = SIZES[size]
    name, batch = "attn" if mixer == PEER else mixer, TOKENS // length
    sizes = f"mixer.num_heads={width // head}", f"model.d_model={width}", f"model.n_layers={layers}"
    cfg, task = compose(f"mixer={name}", *sizes), TaskShape(vocabulary, length)
    model = Parts.of(cfg).build_model(task)
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    if mixer == PEER:
        rows = torch.randint(vocabulary, (2, batch, length), device="cuda")
        step, argument = Captured(Peer(model, length, rows.device).step, [], rows), rows
    else:
        trial = Trial(cfg, task, 1, batch=batch)
        step, argument = trial.captured(), trial.rows[0]
    step(argument)
    torch.cuda.synchronize()
    first = time.perf_counter() - started
    rate = TOKENS / milliseconds(lambda: step(argument), 20) * 1000
    weights = sum(layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Linear))
    flops = 6 * weights + 3 * layers * MIXING[name](width, head, length)
    return {
        "size": size,
        "D": head,
        "T": length,
        "mixer": mixer,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tokens/s": rate,
        "model TFLOP/s": rate * flops / 1e12,
        "memory GiB": torch.cuda.max_memory_allocated() / 2**30,
        "first step s": first,
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=SIZES)
    parser.add_argument("--heads", nargs="+", type=int, default=(64, 128), help="sizes of a head")
    parser.add_argument("--lengths", nargs="+", type=int, default=(1024, 4096))
    parser.add_argument("--mixers", nargs="+", choices=MIXING, default=MIXING, help="beside the peer")
    args = options_on_gpu(parser)
    table = Table(args.output, "language_model")
    for size, head, length in itertools.product(args.sizes, args.heads, args.lengths):
        peer = None
        for mixer in (PEER, *args.mixers):
            row = measure(size, head, length, mixer)
            peer = peer or row["tokens/s"]
            table.add(row | {"times peer": row["tokens/s"] / peer})
            torch.compiler.reset()
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
