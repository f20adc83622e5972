"""What benchmarks compare with: Parallax's kernels, with one signature, q, rho, k, v `[B, T, H, D]`, causal; and the
model of `mixer=attn` in plain PyTorch.
"""

import importlib
import os
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.parallax import parallax_attention

Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

# Helion tunes each kernel at its first call for a shape: two to decode, three to train. It reads this when it is
# imported.
HELION_TUNING = {
    "HELION_AUTOTUNE_EFFORT": "quick",
    "HELION_AUTOTUNE_BUDGET_SECONDS": "150",
    "HELION_AUTOTUNE_RANDOM_SEED": "0",
    "HELION_AUTOTUNE_PROGRESS_BAR": "0",
}


def ours(q: Tensor, rho: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return parallax_attention(q, rho, k, v, backend="triton")


def fla(q: Tensor, rho: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from fla.ops.parallax import parallel_parallax

    return parallel_parallax(q, rho, k, v)


def official(q: Tensor, rho: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from parallax.triton import parallax_func

    # It expects heads before positions, and folds heads into the batch. The benchmark passes such inputs (HEADS_FIRST).
    return parallax_func(q, rho, k, v)


def sdpa(q: Tensor, rho: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention, for comparison: half the products of Parallax forward, 7 of 11 backward."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def helion(q: Tensor, rho: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from parallax.helion import parallax_func

    return parallax_func(q, rho, k, v)  # heads before positions, too


HEADS_FIRST = (official, sdpa, helion)
NEEDS = {
    ours: "mixerlab",
    sdpa: "torch",
    fla: "fla.ops.parallax",
    official: "parallax.triton",
    helion: "parallax.helion",
}
NAMES = [kernel.__name__ for kernel in NEEDS]


def installed(names: Iterable[str]) -> list[Attention]:
    """The kernels of these names that can be imported."""
    return [kernel for kernel, module in NEEDS.items() if kernel.__name__ in names and imported(module)]


def imported(module: str) -> ModuleType | None:
    """A peer's module; None, and a line on it, if it is not installed."""
    for name, value in HELION_TUNING.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module(module)
    except ImportError as error:
        print(f"{module} is left out: {error} (pip install -e '.[bench]')")
        return None


def plain_block(block: Any, x: Tensor, angles: Tensor, attend: Attend) -> Tensor:
    """A block of `mixer=attn`, its layers called one by one: `x` `[B, T, d_model]` to the same.

    Args:
        angles: those of `rotary_angles` at the positions of `x`.
        attend: from q, k and v `[B, H, T, D]` to the output of the same shape.
    """
    own, normed = block.mixer, block.mixer_norm(x)
    layers, cos, sin = (own.q_proj, own.k_proj, own.v_proj), angles.cos(), angles.sin()

    def rotated(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)

    q, k, v = (layer(normed).unflatten(-1, (own.num_heads, own.head_dim)).transpose(1, 2) for layer in layers)
    x = x + own.o_proj(attend(rotated(own.q_norm(q)), rotated(own.k_norm(k)), v).transpose(1, 2).flatten(2))
    normed = block.mlp_norm(x)
    return x + block.mlp.w3(F.silu(block.mlp.w1(normed)) * block.mlp.w2(normed))


def rotary_angles(length: int, head_dim: int, device: torch.device) -> Tensor:
    """Of RoPE, float32 `[length, head_dim]`."""
    pairs = torch.arange(0, head_dim, 2, device=device) / head_dim
    return torch.arange(length, device=device)[:, None] * (10_000**-pairs).repeat(2)
