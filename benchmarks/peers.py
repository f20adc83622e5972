"""What benchmarks compare with: Parallax's kernels, and the model of `mixer=attn` in plain PyTorch."""

import functools
import importlib
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of q, rho, k and v
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

# Helion tunes each kernel at its first call for a shape. It reads this when it is imported.
HELION_TUNING = {
    "HELION_AUTOTUNE_EFFORT": "quick",
    "HELION_AUTOTUNE_BUDGET_SECONDS": "150",
    "HELION_AUTOTUNE_BENCHMARK_TIMEOUT": "120",  # for a process to start, too, which 30 s are too few for beside others
    "HELION_AUTOTUNE_RANDOM_SEED": "0",
    "HELION_AUTOTUNE_PROGRESS_BAR": "0",
}


@functools.cache
def peer(module: str) -> Any:
    """The module, or None if it cannot be imported, which is said once."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # FlashQLA raises a ValueError on other cards
        print(f"{module} is left out: {error}", flush=True)
        return None


def installed(
    names: Collection[str], own: Mapping[str, Kernel], published: Mapping[str, tuple[str, str]]
) -> dict[str, Kernel]:
    """The kernels of these names: our own, and of published ones (module, function) those that can be imported."""
    for name, value in HELION_TUNING.items():
        os.environ.setdefault(name, value)
    found = {name: kernel for name, kernel in own.items() if name in names}
    for name, (module, function) in published.items():
        if name in names and peer(module):
            found[name] = getattr(peer(module), function)
    return found


def for_muon(model: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters that Muon trains, matrices of blocks, and the others."""
    hidden = [parameter for parameter in model.blocks.parameters() if parameter.ndim == 2]
    return hidden, [parameter for parameter in model.parameters() if all(parameter is not one for one in hidden)]


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
