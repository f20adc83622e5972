"""In how many recipes of the screen what the paper claims of its mixers holds, on the screen's cells.

    python results/screen/claims.py results/screen/rows.csv OUT.md

Needs the repository root on PYTHONPATH. A recipe counts where all mixers that the claim names have a record in its
cells, and the best of them is more than 0.05 above chance: where none has learned anything, their order says nothing.
`at the floor` is how many recipes that leaves out. `best`: no other mixer is higher; `ahead`: the second is more than
0.01 lower (mean over two seeds, best of three rates; means over the claim's cells, chance included).
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pandas as pd

import mixerlab
from mixerlab.config.settings import build_task
from mixerlab.results.screen.analyse import responses
from mixerlab.results.screen.design import STAGES

MIXERS = ("attn", "parallax", "gdn", "mamba", "mesa")
ABOVE_CHANCE = 0.05
FIRST = STAGES["first"]
CLAIMS = {
    "Parallax is best on fcr (3,200 examples)": ("parallax", MIXERS, FIRST[3:4]),
    "Parallax is above attention on fcr (3,200 examples)": ("parallax", ("attn", "parallax"), FIRST[3:4]),
    "Parallax is best on sc (800 examples)": ("parallax", MIXERS, FIRST[5:6]),
    "Mesa is best on icr (800 examples)": ("mesa", MIXERS, FIRST[2:3]),
    "Mesa is best on ncr (1,600 examples)": ("mesa", MIXERS, FIRST[4:5]),
    "mamba is best on mem (V 4096)": ("mamba", MIXERS, FIRST[1:2]),
    "mamba is best on cmp (3,200 examples)": ("mamba", MIXERS, FIRST[6:7]),
    "Parallax is best on average over the seven cells": ("parallax", MIXERS, FIRST),
    "Parallax is above attention on average over the seven cells": ("parallax", ("attn", "parallax"), FIRST),
}


@dataclass(frozen=True)
class Count:
    """Recipes: `floor` in which no mixer learned, and `counted` others, in which the claim is `best` or `ahead`."""

    floor: int
    counted: int
    best: int
    ahead: int


def chance(task: str, setting: str) -> float:
    told = build_task(mixerlab.compose(f"task={task}", f"task.setting={setting}").task).chance
    assert told is not None
    return told


def count(
    scores: pd.Series, ours: str, mixers: tuple[str, ...], cells: tuple[tuple[str, str], ...], floor: float
) -> Count:
    """For one claim.

    Args:
        scores: by (mixer, task, setting, recipe).
        floor: what chance reaches, the mean over the cells.
    """
    at_floor, margins = 0, []
    for recipe in sorted(scores.index.unique("recipe")):
        keys = {mixer: [(mixer, *cell, recipe) for cell in cells] for mixer in mixers}
        if any(key not in scores.index for named in keys.values() for key in named):
            continue
        means = {mixer: scores[named].mean() for mixer, named in keys.items()}
        if max(means.values()) <= floor + ABOVE_CHANCE:
            at_floor += 1
        else:
            margins.append(means[ours] - max(mean for mixer, mean in means.items() if mixer != ours))
    best, ahead = (sum(margin >= least for margin in margins) for least in (0, 0.01))
    return Count(at_floor, len(margins), best, ahead)


def report(rows: pd.DataFrame) -> str:
    scores = responses(rows).set_index(["mixer", "task", "setting", "recipe"])["accuracy"]
    floors = {cell: chance(*cell) for cell in FIRST}
    lines = ["| claim | at the floor | recipes | best | ahead |", "|---|---|---|---|---|"]
    for claim, (ours, mixers, cells) in CLAIMS.items():
        found = count(scores, ours, mixers, cells, fmean(floors[cell] for cell in cells))
        lines.append(f"| {claim} | {found.floor} | {found.counted} | {found.best} | {found.ahead} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    made = report(pd.read_csv(sys.argv[1]))
    Path(sys.argv[2]).write_text(made)
    print(made, end="")


if __name__ == "__main__":
    main()
