"""The heat map of decoding: softmax attention's time over ours, of batch sizes and cache lengths, with cold caches.

    python -m mixerlab.benchmarks.decode_heat_map results/benchmarks/parallax_decode

Draws `heat_map.png` from the folder's `table.csv`, as the Parallax paper does (figure `speedup-heatmap`).
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mixerlab.benchmarks.parallax_decode import ratios
from mixerlab.sweeps.figures.sheet import TICK, Sheet, figure_style, save

COLOURS = colormaps["RdBu_r"]  # warm where ours is faster, as in the paper
SCALE = LogNorm(0.5, 2, clip=True)
TITLE = "Time of softmax attention over that of Parallax, decoding one token"


def heat_map(rows: pd.DataFrame, about: str) -> Figure:
    """One panel for each configuration of heads."""
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
        return sheet.finish(TITLE, about, handles, 2.0)  # of a panel, in inches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    cards = {run["gpu"] for run in json.loads((folder / "environment.json").read_text())}
    figure = heat_map(pd.read_csv(folder / "table.csv"), f"{', '.join(cards)}; bf16, cold caches")
    print(*save(figure, folder / "heat_map"))


if __name__ == "__main__":
    main()
