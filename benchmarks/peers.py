"""The kernels that the Parallax benchmark compares, with one signature: q, rho, k, v `[B, T, H, D]`, causal."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mixerlab.kernels.parallax import parallax_attention

Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
OFFICIAL_KERNELS = ("_fwd_kernel", "_bwd_preprocess_kernel", "_bwd_rq_kernel", "_bwd_kv_kernel")
# The most likely of its 36 configurations: (row tile, column tile, warps, stages).
FEW_OFFICIAL_CONFIGS = ((32, 64, 4, 2), (64, 32, 4, 2), (64, 64, 4, 2), (64, 64, 8, 2), (128, 64, 8, 2))


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


HEADS_FIRST = (official, sdpa)
NEEDS = {fla: "fla.ops.parallax", official: "parallax.triton"}


def installed() -> list[Attention]:
    """Our kernel, PyTorch's softmax attention, and the peers that can be imported."""
    found: list[Attention] = [ours, sdpa]
    for peer, module in NEEDS.items():
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"{peer.__name__} is left out: {error} (pip install -e '.[bench]')")
        else:
            found.append(peer)
    return found


def limit_official_configs() -> None:
    """Restricts the official kernel to `FEW_OFFICIAL_CONFIGS`."""

    def likely(config: Any) -> bool:
        tile = config.kwargs["ROW_TILE_SIZE"], config.kwargs.get("COL_TILE_SIZE", 64)
        return (*tile, config.num_warps, config.num_stages) in FEW_OFFICIAL_CONFIGS

    train = importlib.import_module("parallax.triton.parallax_train")
    for tuner in (getattr(train, name) for name in OFFICIAL_KERNELS):
        tuner.configs = [config for config in tuner.configs if likely(config)]
