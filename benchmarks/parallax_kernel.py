"""Error and speed of the Parallax kernels, compared with the published kernels and with softmax attention.

    python -m mixerlab.benchmarks.parallax_kernel --output FOLDER
    python -m mixerlab.benchmarks.parallax_kernel --kernels ours fla sdpa helion --shapes large --output FOLDER

Everything is bf16 and causal. Times are medians over replays of a CUDA graph: one graph of the forward, one of forward
and backward; the backward is their difference. Inputs may stay in the L2 cache. FLOPs count 4 products of length D per
visible query-key pair forward and 11 backward (softmax attention: 2 and 7). The error is the largest relative Frobenius
error over the output and the gradients, against float64, on the first head of the first sequence. The sharp error is
that of the output with q and k scaled by 30, so that each query looks at only one or two keys. `first_call_s` has a
kernel's tuning: minutes with Helion, which is measured if it is named.
"""

import time
from collections.abc import Sequence
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.benchmarks.measuring import Table, forward_and_gradients, graph_ms, options_on_gpu, parser_of
from mixerlab.benchmarks.peers import Kernel, installed
from mixerlab.kernels.parallax import parallax_attention
from mixerlab.kernels.parallax.reference import parallax_reference


def sdpa(q: Tensor, rho: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention, for comparison: half the products of Parallax forward, 7 of 11 backward."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


OWN: dict[str, Kernel] = {"ours": partial(parallax_attention, backend="triton"), "sdpa": sdpa}
PEERS = {
    "fla": ("fla.ops.parallax", "parallel_parallax"),
    "official": ("parallax.triton", "parallax_func"),
    "helion": ("parallax.helion", "parallax_func"),
}
HEADS_FIRST = ("sdpa", "official", "helion")  # expect q, rho, k and v as `[B, H, T, D]`, the others as `[B, T, H, D]`

SHAPES = {
    "large": [(2, 4096, 16, 128), (4, 4096, 16, 64)],
    "long": [(1, 16384, 16, 128)],
    "mad": [(128, t, h, 128 // h) for t in (128, 256, 512, 1024, 2048) for h in (8, 4, 2, 1)],
}


def laid_out(name: str, tensors: list[Tensor]) -> list[Tensor]:
    """The tensors in the memory order that this kernel expects, so that no copy is timed."""
    return [x.transpose(1, 2).contiguous() for x in tensors] if name in HEADS_FIRST else tensors


def largest_error(name: str, tensors: list[Tensor], results: Sequence[Tensor | None]) -> float:
    """The largest error over `results`: the output and possibly the gradients.

    Softmax attention is compared with its own formula (rho = 0).
    """
    *first, d_o = (x[:1, :, :1].double() for x in tensors)
    if name == "sdpa":
        first[1] = torch.zeros_like(first[1])
    scale = d_o.shape[-1] ** -0.5
    exact = forward_and_gradients(lambda q, rho, k, v: parallax_reference(q, rho, k, v, scale, None), first, d_o)
    errors = []
    for got, expected in zip(results, exact, strict=False):
        if got is not None:  # softmax attention has no gradient for rho
            got = got.transpose(1, 2) if name in HEADS_FIRST else got
            errors.append((got[:1, :, :1].double() - expected).norm() / expected.norm())
    return torch.stack(errors).max().item()  # NaN if one is


def measure(name: str, kernel: Kernel, shape: tuple[int, int, int, int]) -> dict:
    """One row of the table."""
    batch, length, heads, head_dim = shape
    tensors = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(5)]  # the last of the output
    *inputs, d_o = laid_out(name, tensors)
    started = time.perf_counter()
    results = forward_and_gradients(kernel, inputs, d_o)
    torch.cuda.synchronize()
    first_call = time.perf_counter() - started
    error = largest_error(name, tensors, results)
    q, rho, k, *rest = tensors
    sharp = [30 * q, rho, 30 * k, *rest]
    sharp_error = largest_error(name, sharp, [kernel(*laid_out(name, sharp)[:4])])
    del results, sharp
    torch.cuda.empty_cache()

    leaves = [x.detach().requires_grad_() for x in inputs]
    forward = graph_ms(lambda: kernel(*leaves))
    both = graph_ms(lambda: forward_and_gradients(kernel, inputs, d_o))
    flops = 2 * head_dim * batch * heads * length * (length + 1) / 2
    products = (2, 7) if name == "sdpa" else (4, 11)
    return {
        "kernel": name,
        **dict(zip("BTHD", shape, strict=True)),
        "error": error,
        "sharp_error": sharp_error,
        "forward_ms": forward,
        "backward_ms": both - forward,
        "forward_tflops": products[0] * flops / forward / 1e9,
        "backward_tflops": products[1] * flops / (both - forward) / 1e9,
        "first_call_s": first_call,
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--kernels", nargs="+", choices=[*OWN, *PEERS], default=["ours", "sdpa", "fla", "official"])
    parser.add_argument("--head-dims", nargs="+", type=int, default=[16, 32, 64, 128])
    options = options_on_gpu(parser)
    shapes = [s for group in options.shapes for s in SHAPES[group] if s[3] in options.head_dims]
    kernels = installed(options.kernels, OWN, PEERS)
    table = Table(options.output, "parallax_kernel")
    # Kernel by kernel, the official one and Helion's last: if tuning fails, the rows of the others are already written.
    for (name, kernel), shape in product(kernels.items(), shapes):
        table.add(measure(name, kernel, shape))
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
