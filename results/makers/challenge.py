"""The challenge and its other recipes."""

import shutil
from collections.abc import Mapping
from math import comb
from pathlib import Path

import pandas as pd
from makers.common import (
    FORMER,
    PAPER,
    RATES,
    RECORDS,
    best_of_seeds,
    copy_report,
    learned_and_best,
    recipe_table,
    rows_in,
    write_in_page,
)

from mixerlab.records.names import place_rank
from mixerlab.sweeps.report.compare import compare
from mixerlab.sweeps.tables.swept import spread_out

LONGEST_RECALL = ("icr_challenge", "1024-2048"), ("ncr_vocab_challenge", "512-2048")


def make(folder: Path, scratch: Path) -> None:
    copy_report(folder, ["official/challenge.md", "official/solved.md"], scratch)
    compare([folder / RECORDS], scratch / "beside", {"parallax": PAPER})
    for made, kept in (("settings.png", "beside_the_paper.png"), ("published.md", "beside_the_paper.md")):
        shutil.copyfile(scratch / "beside" / made, folder / "official" / kept)
    default, former, others = (rows_in("challenge", file) for file in (RECORDS, FORMER, "recipes.tar.xz"))
    authors = default["mixer"] == "parallax"
    sides = {"attn": default[default["mixer"] == "attn"], "the former Parallax": former, "Parallax": default[authors]}
    write_in_page(folder, "levels", levels_lines(sides), 2)
    default = pd.concat([default[~authors], former])
    both = pd.concat([default.assign(origin="default"), others.assign(origin="recipes")], ignore_index=True)
    both = spread_out(both[both["task"].isin(others["task"])])
    usual = {column.mixer: set(column.values) for column in both.loc[both["origin"] == "default", "column"].unique()}
    both["recipe"] = [
        ", ".join(f"{key}={value}" for key, value in column.values if (key, value) not in usual[column.mixer])
        or "default"
        for column in both["column"]
    ]
    recipes = {name: best_of_seeds(rows, RATES) for name, rows in both.groupby("recipe", sort=False)}
    (folder / "recipes.md").write_text(f"{recipe_table(recipes)}Parallax is the former one.\n")


def levels_lines(sides: Mapping[str, pd.DataFrame]) -> list[list[str]]:
    """Attention and two Parallaxes on the levels of the last, and pairs of task and seed that learned the longest."""
    lines: list[list[str]] = [["task", "level", *sides]]
    pairs: dict[str, list[bool]] = {side: [] for side in sides}
    places = sides["Parallax"][["task", "setting"]].drop_duplicates().itertuples(index=False, name=None)
    for task, level in sorted(places, key=place_rank):
        lines.append([task, level])
        for side, rows in sides.items():
            learned, cell = learned_and_best(rows[(rows["task"] == task) & (rows["setting"] == level)])
            lines[-1].append(cell)
            pairs[side] += map(bool, learned) if (task, level) in LONGEST_RECALL else []
    (each,) = set(map(len, pairs.values()))
    attention, *others = map(sum, pairs.values())
    lines.append(["recall at 2,048", "task and seed", *(f"{count} of {each}" for count in (attention, *others))])
    return [*lines, ["", "p", "", *(f"{fisher(count, attention, each):.3f}" for count in others)]]


def fisher(more: int, fewer: int, each: int) -> float:
    """The one-sided p of Fisher's exact test: `more` of `each` have it, and `fewer` of as many others."""
    both = more + fewer
    ways = [comb(each, count) * comb(each, both - count) for count in range(both + 1)]
    return sum(ways[more:]) / sum(ways)
