"""The kernels that the Parallax benchmark compares, behind one signature: q, rho, k, v `[B, T, H, D]`, causal."""

import importlib
import subprocess
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.parallax import parallax_attention

Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
OFFICIAL_KERNELS = ("_fwd_kernel", "_bwd_preprocess_kernel", "_bwd_rq_kernel", "_bwd_kv_kernel")
# The likely ones of its 36: (row tile, column tile, warps, stages).
FEW_OFFICIAL_CONFIGS = ((32, 64, 4, 2), (64, 32, 4, 2), (64, 64, 4, 2), (64, 64, 8, 2), (128, 64, 8, 2))


def ours(q: Tensor, rho: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return parallax_attention(q, rho, k, v, backend="triton")


def fla(q: Tensor, rho: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from fla.ops.parallax import parallel_parallax

    return parallel_parallax(q, rho, k, v)


def official(q: Tensor, rho: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from parallax.triton import parallax_func

    # Its layout is heads first, and it folds heads into the batch: it is given inputs that lie that way.
    return parallax_func(q, rho, k, v)


def sdpa(q: Tensor, rho: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention, for scale: half the products of Parallax forward, 7 of 11 backward."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


HEADS_FIRST = (official, sdpa)
NEEDS = {fla: "fla.ops.parallax", official: "parallax.triton"}


def installed() -> list[Attention]:
    """Ours, torch's softmax attention, and the peers that can be imported."""
    found = [ours, sdpa]
    for peer, module in NEEDS.items():
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"{peer.__name__} is left out: {error} (pip install 'mixerlab[bench]')")
        else:
            found.append(peer)
    return found


def limit_official_configs() -> None:
    """Leaves the official kernel `FEW_OFFICIAL_CONFIGS`, timed briefly: tuning over all takes minutes a shape."""

    def likely(config) -> bool:
        tile = config.kwargs["ROW_TILE_SIZE"], config.kwargs.get("COL_TILE_SIZE", 64)
        return (*tile, config.num_warps, config.num_stages) in FEW_OFFICIAL_CONFIGS

    from triton.testing import do_bench

    train = importlib.import_module("parallax.triton.parallax_train")
    for name in OFFICIAL_KERNELS:
        tuner = getattr(train, name)
        tuner.configs = [config for config in tuner.configs if likely(config)]
        tuner._do_bench = lambda call, quantiles: do_bench(call, warmup=2, rep=10, quantiles=quantiles)


def compile_peers(head_dims: list[int], workers: int, official_configs: str) -> None:
    """Compiles the peers' kernels into Triton's cache, in parallel processes.

    The official kernel's autotuner then only times its 36 configurations of three kernels, which it would
    compile for minutes one after another.
    """
    commands = [
        [sys.executable, "-m", "benchmarks.peers", official_configs, str(share), str(workers), *map(str, head_dims)]
        for share in range(workers)
    ]
    processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in commands]
    failed = sum(process.wait() != 0 for process in processes)
    if failed:
        raise RuntimeError(f"compiling the peers' kernels failed in {failed} of {workers} processes")


def _compile_share(share: int, workers: int, head_dims: list[int]) -> None:
    def call(kernel, head_dim):
        shape = (1, 1, 128, head_dim) if kernel in HEADS_FIRST else (1, 128, 1, head_dim)
        inputs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(4)]
        kernel(*inputs).sum().backward()

    for head_dim in head_dims[share::workers]:
        call(fla, head_dim)
    train = importlib.import_module("parallax.triton.parallax_train")
    configs = {name: getattr(train, name).configs for name in OFFICIAL_KERNELS}
    for i in range(share, len(head_dims) * max(map(len, configs.values())), workers):
        for name, choices in configs.items():
            tuner = getattr(train, name)
            tuner.configs = [choices[i // len(head_dims) % len(choices)]]
            tuner.cache.clear()
        try:
            call(official, head_dims[i % len(head_dims)])
        except Exception as error:  # a configuration that does not fit the GPU, which its tuner skips too
            print(f"official, configuration {i // len(head_dims)}: {type(error).__name__}")


if __name__ == "__main__":
    if sys.argv[1] == "few":
        limit_official_configs()
    _compile_share(int(sys.argv[2]), int(sys.argv[3]), [int(d) for d in sys.argv[4:]])
