"""The kernels that the Parallax benchmark compares, with one signature: q, rho, k, v `[B, T, H, D]`, causal.

Run as a program, it compiles a share of the peers' kernels; `compile_peers` starts several such processes.
"""

import argparse
import importlib
import subprocess
import sys
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

    for tuner in _official_tuners():
        tuner.configs = [config for config in tuner.configs if likely(config)]


def time_official_configs(brief: bool) -> None:
    """Sets how long the official kernel's tuning times a configuration: 5 ms if `brief`, else Triton's 100 ms."""
    from triton.testing import do_bench

    def brief_bench(call, quantiles):
        return do_bench(call, warmup=2, rep=5, quantiles=quantiles)

    for tuner in _official_tuners():
        # The tuner caches the function that it uses.
        tuner.__dict__.pop("do_bench", None)
        tuner._do_bench = brief_bench if brief else None


def _official_tuners() -> list:
    train = importlib.import_module("parallax.triton.parallax_train")
    return [getattr(train, name) for name in OFFICIAL_KERNELS]


def compile_peers(head_dims: list[int], workers: int, official_configs: str) -> None:
    """Compiles the peers' kernels into Triton's cache, in parallel processes.

    The autotuner of the official kernel then only has to time the 36 configurations of its three kernels. Compiling
    them one after another would take it minutes.
    """
    commands = [
        [
            sys.executable,
            "-m",
            "mixerlab.benchmarks.peers",
            official_configs,
            str(share),
            str(workers),
            *map(str, head_dims),
        ]
        for share in range(workers)
    ]
    processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in commands]
    failed = sum(process.wait() != 0 for process in processes)
    if failed:
        raise RuntimeError(f"compiling the peers' kernels failed in {failed} of {workers} processes")


class _Compiler:
    """Replaces an autotuned kernel: a call compiles a share of its configurations and runs none of them."""

    def __init__(self, tuner: Any, share: int, workers: int):
        self.tuner, self.share, self.workers = tuner, share, workers

    def __getitem__(self, grid):
        return self._compile

    def _compile(self, *arguments):
        from triton.runtime.errors import OutOfResources, PTXASError

        self.tuner.nargs = dict(zip(self.tuner.arg_names, arguments, strict=False))
        for config in self.tuner.prune_configs({})[self.share :: self.workers]:
            try:
                self.tuner.fn.warmup(*arguments, grid=(1,), **config.all_kwargs())
            except (OutOfResources, PTXASError) as error:  # does not fit on the GPU; the tuner skips it too
                print(f"official, {config}: {type(error).__name__}")


def _compile_share(share: int, workers: int, head_dims: list[int]) -> None:
    """Compiles one share. Lengths, strides and the dense output gradient must be like those of the benchmark.

    Triton specialises on arguments that are 1 or divisible by 16, so other inputs would give other builds.
    """

    def call(kernel, head_dim):
        shape = (16, 2, 128, head_dim) if kernel in HEADS_FIRST else (16, 128, 2, head_dim)
        *inputs, d_o = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(5))
        torch.autograd.grad(kernel(*(x.requires_grad_() for x in inputs)), inputs, d_o)

    train = importlib.import_module("parallax.triton.parallax_train")
    for i, name in enumerate(OFFICIAL_KERNELS):  # each kernel's shares start where those of the previous one ended
        tuner = getattr(train, name)
        setattr(train, name, _Compiler(tuner, (share - i * len(tuner.configs)) % workers, workers))
    for head_dim in head_dims:
        call(official, head_dim)
    for head_dim in head_dims[share::workers]:
        call(fla, head_dim)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m mixerlab.benchmarks.peers",
        description="Compiles a share of the peers' kernels into Triton's cache, for benchmarks.parallax_kernel.",
    )
    parser.add_argument("official_configs", choices=("all", "few"))
    parser.add_argument("share", type=int, help="number of the share to compile, from 0")
    parser.add_argument("workers", type=int, help="total number of shares")
    parser.add_argument("head_dims", nargs="*", type=int)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    if args.official_configs == "few":
        limit_official_configs()
    _compile_share(args.share, args.workers, args.head_dims)


if __name__ == "__main__":
    main()
