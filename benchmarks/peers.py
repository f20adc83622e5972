"""The kernels that the Parallax benchmark compares, with one signature: q, rho, k, v `[B, T, H, D]`, causal."""

import importlib
import os
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from mixerlab.kernels.parallax import parallax_attention

Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
OFFICIAL_KERNELS = ("_fwd_kernel", "_bwd_preprocess_kernel", "_bwd_rq_kernel", "_bwd_kv_kernel")
# The most likely of its 36 configurations: (row tile, column tile, warps, stages).
FEW_OFFICIAL_CONFIGS = ((32, 64, 4, 2), (64, 32, 4, 2), (64, 64, 4, 2), (64, 64, 8, 2), (128, 64, 8, 2))

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


def limit_official_configs() -> None:
    """Restricts the official kernel to `FEW_OFFICIAL_CONFIGS`."""

    def likely(config: Any) -> bool:
        tile = config.kwargs["ROW_TILE_SIZE"], config.kwargs.get("COL_TILE_SIZE", 64)
        return (*tile, config.num_warps, config.num_stages) in FEW_OFFICIAL_CONFIGS

    train = importlib.import_module("parallax.triton.parallax_train")
    for tuner in (getattr(train, name) for name in OFFICIAL_KERNELS):
        tuner.configs = [config for config in tuner.configs if likely(config)]
