"""Error and speed of the Parallax kernels, compared with the published kernels and with softmax attention.

    python -m mixerlab.benchmarks.parallax_kernel --output FOLDER
    python -m mixerlab.benchmarks.parallax_kernel --kernels ours fla sdpa helion --shapes large --output FOLDER

Everything is bf16 and causal. Times are medians over replays of a CUDA graph: one graph of the forward, one of forward
and backward; the backward is their difference. The inputs do not move between replays, so they may be in the L2 cache
if they fit. FLOPs count 4 products of length D per visible query-key pair forward and 11 backward (softmax attention:
2 and 7), whatever a kernel really computes. The error is the largest relative Frobenius error over the output and the
gradients, against float64, on the first head of the first sequence. The sharp error is the error of the output with q
and k scaled by 30, so that each query looks at only one or two keys. `first_call_s` has a kernel's tuning: minutes with
Helion, which is measured if it is named. Rows are appended.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch

from mixerlab.benchmarks import peers
from mixerlab.benchmarks.measuring import Table, graph_ms
from mixerlab.kernels.parallax.reference import parallax_reference

SHAPES = {
    "large": [(2, 4096, 16, 128), (4, 4096, 16, 64)],
    "long": [(1, 16384, 16, 128)],
    "mad": [(128, t, h, 128 // h) for t in (128, 256, 512, 1024, 2048) for h in (8, 4, 2, 1)],
}


def draw(shape: tuple[int, int, int, int]) -> list[torch.Tensor]:
    """q, rho, k, v and the gradient of the output, each `[B, T, H, D]`."""
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(5)]


def laid_out(kernel: peers.Attention, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors in the memory order that the kernel expects, so that no copy is timed."""
    return [x.transpose(1, 2).contiguous() for x in tensors] if kernel in peers.HEADS_FIRST else tensors


def forward_and_gradients(kernel: peers.Attention, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    *inputs, d_o = tensors
    leaves = [x.detach().requires_grad_() for x in inputs]
    o = kernel(*leaves)
    gradients = torch.autograd.grad(o, leaves, d_o, allow_unused=True)
    return [o.detach(), *gradients]


def largest_error(
    kernel: peers.Attention, tensors: list[torch.Tensor], results: Sequence[torch.Tensor | None]
) -> float:
    """The largest error over `results`: the output and possibly the gradients.

    Softmax attention is compared with its own formula (rho = 0).
    """
    first = [x[:1, :, :1].double() for x in tensors]
    if kernel is peers.sdpa:
        first[1] = torch.zeros_like(first[1])
    scale = first[0].shape[-1] ** -0.5
    exact = forward_and_gradients(lambda q, rho, k, v: parallax_reference(q, rho, k, v, scale, True, None), first)
    errors = []
    for got, expected in zip(results, exact, strict=False):
        if got is not None:  # softmax attention has no gradient for rho
            got = got.transpose(1, 2) if kernel in peers.HEADS_FIRST else got
            errors.append(((got[:1, :, :1].double() - expected).norm() / expected.norm()).item())
    return float("nan") if any(e != e for e in errors) else max(errors)


def sharp_error(kernel: peers.Attention, tensors: list[torch.Tensor]) -> float:
    """The error of the output with q and k scaled by 30."""
    q, rho, k, v, d_o = tensors
    sharp = [30 * q, rho, 30 * k, v, d_o]
    return largest_error(kernel, sharp, [kernel(*laid_out(kernel, sharp)[:4])])


def measure(kernel: peers.Attention, shape: tuple[int, int, int, int]) -> dict:
    """One row of the table."""
    batch, length, heads, head_dim = shape
    tensors = draw(shape)
    inputs = laid_out(kernel, tensors)
    started = time.perf_counter()
    results = forward_and_gradients(kernel, inputs)
    torch.cuda.synchronize()
    first_call = time.perf_counter() - started
    error = largest_error(kernel, tensors, results)
    sharp = sharp_error(kernel, tensors)
    del results
    torch.cuda.empty_cache()

    leaves = [x.detach().requires_grad_() for x in inputs[:4]]
    forward = graph_ms(lambda: kernel(*leaves))
    both = graph_ms(lambda: forward_and_gradients(kernel, inputs))
    flops = 2 * head_dim * batch * heads * length * (length + 1) / 2
    products = (2, 7) if kernel is peers.sdpa else (4, 11)
    return {
        "kernel": kernel.__name__,
        **dict(zip("BTHD", shape, strict=True)),
        "error": error,
        "sharp_error": sharp,
        "forward_ms": forward,
        "backward_ms": both - forward,
        "forward_tflops": products[0] * flops / forward / 1e9,
        "backward_tflops": products[1] * flops / (both - forward) / 1e9,
        "first_call_s": first_call,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--kernels", nargs="+", choices=peers.NAMES, default=["ours", "sdpa", "fla", "official"])
    parser.add_argument("--head-dims", nargs="+", type=int, default=[16, 32, 64, 128])
    parser.add_argument("--output", type=Path, required=True, help="folder of table.csv and environment.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    shapes = [s for group in options.shapes for s in SHAPES[group] if s[3] in options.head_dims]
    kernels = peers.installed(options.kernels)
    table = Table(options.output, "parallax_kernel")
    # Kernel by kernel, the official one and Helion's last: if tuning fails, the rows of the others are already written.
    for kernel, shape in product(kernels, shapes):
        table.add(measure(kernel, shape))
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
