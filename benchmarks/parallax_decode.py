"""One decoded token of Parallax beside softmax attention: time and error over cache lengths and batch sizes.

    python -m mixerlab.benchmarks.parallax_decode --output results/benchmarks/parallax_decode

bf16. Times are medians over replays of a CUDA graph, warm (the same caches again and again) and cold (copies of the
caches in turn, together larger than the L2 cache). `read_us` is the time to read K and V once at the card's copy
rate, which is measured first. The error is the relative Frobenius error against float64 on the first sequence.
"""

import argparse
import csv
import json
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.benchmarks.parallax_kernel import environment, graph_ms
from mixerlab.kernels.parallax.decode import parallax_decode

LENGTHS = [2**power for power in range(7, 16)]
BATCHES = [2**power for power in range(12)]
MOST_KEYS = 2**22  # batch times length
HEADS = [(8, 8), (32, 8)]  # of queries, of keys
COLD_BYTES = 2**28  # several times the L2 cache

Decoder = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def sdpa(q: Tensor, rho: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention of one token, which sees the whole cache."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)


DECODERS: dict[str, Decoder] = {"ours": parallax_decode, "sdpa": sdpa}


def shapes(head_dims: list[int]) -> Iterator[tuple[int, int, int, int, int]]:
    """(B, S, Hq, Hkv, D)"""
    for head_dim in head_dims:
        for heads, kv_heads in HEADS:
            for length in LENGTHS:
                for batch in BATCHES:
                    if batch * length <= MOST_KEYS:
                        yield batch, length, heads, kv_heads, head_dim


def copy_rate() -> float:
    """Bytes that the card reads and writes in a microsecond, by a copy of 1 GiB."""
    source = torch.empty(2**28, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (1e3 * graph_ms(lambda: target.copy_(source)))


def measure(shape: tuple[int, int, int, int, int], rate: float) -> dict[str, float]:
    """One row of the table."""
    batch, length, heads, kv_heads, head_dim = shape
    cache_bytes = 2 * batch * length * kv_heads * head_dim * 2
    copies = min(64, math.ceil(COLD_BYTES / cache_bytes))
    q, rho = (torch.randn(batch, 1, heads, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    caches = torch.randn(copies, 2, batch, length, kv_heads, head_dim, device="cuda", dtype=torch.bfloat16)
    row = dict(zip(("B", "S", "Hq", "Hkv", "D"), shape, strict=True)) | {"read_us": cache_bytes / rate}
    for name, decode in DECODERS.items():
        first = [x[:1].double() for x in (q, rho if name == "ours" else 0 * rho, *caches[0])]
        expected = parallax_decode(*first, backend="reference")
        got = decode(q, rho, *caches[0])[:1].double()
        row[f"{name}_error"] = ((got - expected).norm() / expected.norm()).item()
        row[f"{name}_warm_us"] = 1e3 * graph_ms(partial(decode, q, rho, *caches[0]))
        row[f"{name}_cold_us"] = 1e3 / copies * graph_ms(partial(_each, decode, q, rho, caches))
    return row


def _each(decode: Decoder, q: Tensor, rho: Tensor, caches: Tensor) -> list[Tensor]:
    return [decode(q, rho, *cache) for cache in caches]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dims", nargs="+", type=int, default=[128, 64])
    parser.add_argument("--output", type=Path, required=True, help="folder for table.csv and environment.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    options.output.mkdir(parents=True, exist_ok=True)
    rate = copy_rate()
    about = environment("parallax_decode") | {"copy_gb_per_s": round(rate / 1e3, 1)}
    (options.output / "environment.json").write_text(json.dumps(about, indent=2) + "\n")
    ratios: list[float] = []
    with open(options.output / "table.csv", "w", newline="", buffering=1) as file:
        for shape in shapes(options.head_dims):
            row = measure(shape, rate)
            if not ratios:
                csv.DictWriter(file, row).writeheader()
            csv.DictWriter(file, row).writerow({key: f"{value:.5g}" for key, value in row.items()})
            ratios.append(row["sdpa_cold_us"] / row["ours_cold_us"])
            print(*(f"{key} {value:.4g}" for key, value in row.items()), flush=True)
    print(f"geometric mean of SDPA's time over ours, cold: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}")


if __name__ == "__main__":
    main()
