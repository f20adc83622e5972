"""One decoded token of Parallax beside its peers and softmax attention: time and error over caches and batch sizes.

    python -m mixerlab.benchmarks.parallax_decode --output results/benchmarks/parallax_decode
    python -m mixerlab.benchmarks.parallax_decode --peers ours sdpa helion --shapes 1,4096,8,8,128 --output FOLDER
    python -m mixerlab.benchmarks.parallax_decode --draw --output results/benchmarks/parallax_decode

bf16. Times are medians over replays of a CUDA graph, warm (the same caches again and again) and cold (copies of the
caches in turn, together larger than the L2 cache). `read_us` is the time to read K and V once at the card's copy
rate. The error is the largest relative Frobenius error of the first and the last sequence against float64.
`first_call_s` compiles, and tunes: minutes with Helion, whose shapes are to be named.

`--draw` only draws `heat_map.png` from the folder's `table.csv`, as the Parallax paper does in its I/O-matched setting
(figure `speedup-heatmap`), there beside the better of FlashAttention 2 and 3.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib import colormaps
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from mixerlab.benchmarks.measuring import Table, copy_rate, graph_ms, options_on_gpu, parser_of
from mixerlab.benchmarks.peers import Kernel, installed
from mixerlab.kernels.parallax.decode import parallax_decode
from mixerlab.sweeps.figures.sheet import TICK, Sheet, figure_style, save

LENGTHS = [2**power for power in range(7, 16)]
BATCHES = [2**power for power in range(12)]
MOST_KEYS = 2**22  # batch times length
HEADS = [(8, 8), (32, 8)]  # of queries, of keys
COLD_BYTES = 2**28  # several times the L2 cache
COLOURS = colormaps["RdBu_r"]  # warm where ours is faster, as in the paper
SCALE = LogNorm(0.5, 2, clip=True)

Shape = tuple[int, ...]  # B, S, Hq, Hkv, D


def sdpa(q: Tensor, rho: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention of one token, which sees the whole cache."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)


OWN: dict[str, Kernel] = {"ours": parallax_decode, "sdpa": sdpa}
PEERS = {
    "official": ("parallax.triton", "parallax_decode"),
    "fla": ("fla.ops.parallax.decode", "parallax_decode_one_step"),
    "helion": ("parallax.helion", "parallax_decode"),
}


def shape(text: str) -> Shape:
    """Of `B,S,Hq,Hkv,D`."""
    sizes = tuple(map(int, text.split(",")))
    if len(sizes) != 5:
        raise argparse.ArgumentTypeError(f"{text} is no shape: give B,S,Hq,Hkv,D, such as 1,4096,8,8,128")
    return sizes


def measure(shape: Shape, decoders: dict[str, Kernel], rate: float) -> Iterator[dict[str, object]]:
    """A row of the table for each decoder; a peer that cannot do this shape has a line instead."""
    batch, length, heads, kv_heads, head_dim = shape
    cache_bytes = 2 * batch * length * kv_heads * head_dim * 2
    copies = min(64, math.ceil(COLD_BYTES / cache_bytes))
    q, rho = (torch.randn(batch, 1, heads, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    caches = torch.randn(copies, 2, batch, length, kv_heads, head_dim, device="cuda", dtype=torch.bfloat16)
    about = dict(zip(("B", "S", "Hq", "Hkv", "D"), shape, strict=True))
    for name, decode in decoders.items():
        if name == "official" and caches[0, 0].numel() > 2**31:
            continue  # its offsets have 32 bits
        row = about | {"decoder": name, "read_us": 1e6 * cache_bytes / rate}
        try:
            yield row | _measured(decode, q, 0 * rho if name == "sdpa" else rho, caches)
        except RuntimeError as error:
            if name == "ours":
                raise
            print(f"{name} at {shape}: {error}", flush=True)


def _measured(decode: Kernel, q: Tensor, rho: Tensor, caches: Tensor) -> dict[str, float]:
    started = time.perf_counter()
    got = decode(q, rho, *caches[0])
    torch.cuda.synchronize()
    first_call = time.perf_counter() - started
    return {
        "error": _error(got, q, rho, *caches[0]),
        "warm_us": 1e3 * graph_ms(partial(decode, q, rho, *caches[0])),
        "cold_us": 1e3 * graph_ms(lambda: [decode(q, rho, *cache) for cache in caches]) / len(caches),
        "first_call_s": first_call,
    }


def _error(got: Tensor, *inputs: Tensor) -> float:
    ends = [0, -1]  # of which the last has the largest offsets
    expected = parallax_decode(*(x[ends].double() for x in inputs), backend="reference")
    off, size = (x.flatten(1).norm(dim=1) for x in (got[ends] - expected, expected))
    return (off / size).max().item()


def ratios(rows: pd.DataFrame, peer: str = "sdpa", column: str = "cold_us") -> pd.Series:
    """A peer's time over ours at each shape, of the last run that has both."""
    times = rows.pivot(index=["run", "B", "S", "Hq", "Hkv", "D"], columns="decoder", values=column)
    return (times[peer] / times["ours"]).dropna().groupby(level=["Hq", "Hkv", "D", "S", "B"]).last()


def heat_map(rows: pd.DataFrame, about: str) -> Figure:
    """The time of softmax attention over ours, with cold caches: one panel for each configuration of heads."""
    panels = dict(list(ratios(rows).groupby(level=["Hq", "Hkv", "D"])))
    with figure_style():
        heads = [f"{hq} query and {hkv} key heads of {d}" for hq, hkv, d in panels]
        sheet = Sheet(None, heads, narrowest=2.5, widest=3.2)
        for panel, own in zip(sheet.panels, panels.values(), strict=True):
            cells = own.droplevel(["Hq", "Hkv", "D"]).unstack("S")
            panel.imshow(cells, cmap=COLOURS, norm=SCALE, aspect="auto", origin="lower")
            panel.grid(visible=False)
            panel.tick_params(length=0)
            panel.set_xticks(range(len(cells.columns)), cells.columns)
            panel.set_yticks(range(len(cells.index)), cells.index)
            panel.set(xlabel="keys in the cache", ylabel="sequences")
            for (y, x), ratio in np.ndenumerate(cells.to_numpy()):
                if not np.isnan(ratio):
                    ink = "black" if 0.2 < SCALE(ratio) < 0.8 else "white"
                    panel.text(x, y, f"{ratio:.2f}", ha="center", va="center", fontsize=TICK - 0.5, color=ink)
        handles = [Patch(color=COLOURS(SCALE(ratio)), label=f"{ratio:g}") for ratio in (0.5, 0.7, 1, 1.4, 2)]
        title = "Time of softmax attention over that of Parallax, decoding one token"
        return sheet.finish(title, about, handles, 2.0)  # inches of a panel


def draw(folder: Path) -> None:
    cards = {run["gpu"] for run in json.loads((folder / "environment.json").read_text())}
    figure = heat_map(pd.read_csv(folder / "table.csv"), f"{', '.join(cards)}; bf16, cold caches")
    print(*save(figure, folder / "heat_map"))


def main() -> None:
    parser = parser_of(__doc__)
    names = [*OWN, *PEERS]
    parser.add_argument("--peers", nargs="+", choices=names, default=[name for name in names if name != "helion"])
    parser.add_argument("--head-dims", nargs="+", type=int, default=[128, 64])
    parser.add_argument("--shapes", nargs="+", type=shape, metavar="B,S,Hq,Hkv,D", help="instead of the whole grid")
    parser.add_argument("--draw", action="store_true", help="only draw what is in the table")
    if (options := parser.parse_args()).draw:
        return draw(options.output)
    options = options_on_gpu(parser)
    decoders = installed(options.peers, OWN, PEERS)
    rate = copy_rate()
    table = Table(options.output, "parallax_decode", copy_gb_per_s=round(rate / 1e9, 1))
    heads = [(*heads, head_dim) for head_dim in options.head_dims for heads in HEADS]
    grid = [(b, s, *own) for own in heads for s in LENGTHS for b in BATCHES if b * s <= MOST_KEYS]
    for one in options.shapes or grid:
        for row in measure(one, decoders, rate):
            table.add(row)
        torch.cuda.empty_cache()
    rows = pd.read_csv(table.path)
    rows = rows[rows["run"] == table.run]
    measured = {*rows["decoder"]}
    for peer in sorted(measured - {"ours"}) if "ours" in measured else ():
        for column in ("warm_us", "cold_us"):
            own = ratios(rows, peer, column)
            mean = math.exp(own.map(math.log).mean())
            print(f"{column} of {peer} over ours: geometric mean {mean:.3f}, least {own.min():.3f}")


if __name__ == "__main__":
    main()
