"""The challenge and its other recipes."""

import shutil
from collections.abc import Mapping
from math import comb
from pathlib import Path

import pandas as pd
from makers import common
from makers.common import PLACE, RECORDS, best_of_seeds

from mixerlab.sweeps.report.compare import compare
from mixerlab.sweeps.tables.swept import spread_out
from mixerlab.sweeps.tables.writers import in_place_order

LONGEST_RECALL = [("icr_challenge", "1024-2048"), ("ncr_vocab_challenge", "512-2048")]


def make(folder: Path, scratch: Path) -> None:
    common.copy_report(folder, ["official/challenge.md", "official/solved.md"], scratch)
    compare([folder / RECORDS], scratch / "beside", {"parallax": common.PAPER})
    for made, kept in (("settings.png", "beside_the_paper.png"), ("published.md", "beside_the_paper.md")):
        shutil.copyfile(scratch / "beside" / made, folder / "official" / kept)
    default, former, others = (common.rows_in("challenge", file) for file in (RECORDS, common.FORMER, "recipes.tar.xz"))
    authors = default["mixer"] == "parallax"
    sides = {"attn": default[default["mixer"] == "attn"], "the former Parallax": former, "Parallax": default[authors]}
    common.write_in_page(folder, "levels", levels_table(sides))
    default = pd.concat([default[~authors], former])
    both = pd.concat([default.assign(origin="default"), others.assign(origin="recipes")], ignore_index=True)
    both = spread_out(both[both["task"].isin(others["task"])])
    usual = {column.mixer: set(column.values) for column in both.loc[both["origin"] == "default", "column"].unique()}
    both["recipe"] = [
        ", ".join(f"{key}={value}" for key, value in column.values if (key, value) not in usual[column.mixer])
        or "default"
        for column in both["column"]
    ]
    recipes = {name: best_of_seeds(rows, common.RATES) for name, rows in both.groupby("recipe", sort=False)}
    (folder / "recipes.md").write_text(common.recipe_table(recipes, "\nParallax is the former one."))


def levels_table(sides: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Attention and two Parallaxes on the levels of the last, and pairs of task and seed that learned the longest."""
    seeds = {side: best_of_seeds(rows, common.RATES).droplevel("mixer") for side, rows in sides.items()}
    texts = {side: own.groupby(PLACE).apply(common.learned_and_best) for side, own in seeds.items()}
    table = in_place_order(pd.DataFrame(texts).dropna().rename_axis(["task", "level"]))
    pairs = pd.DataFrame({side: own["learned"] > 0 for side, own in seeds.items()}).dropna()
    pairs = pairs[pairs.index.droplevel("seed").isin(LONGEST_RECALL)]
    counts, each = pairs.sum(), len(pairs)
    table.loc[("recall at 2,048", "task and seed"), :] = [f"{count} of {each}" for count in counts]
    others = counts.drop("attn")
    table.loc[("", "p"), others.index] = [f"{fisher(count, counts['attn'], each):.3f}" for count in others]
    return table


def fisher(more: int, fewer: int, each: int) -> float:
    """The one-sided p of Fisher's exact test: `more` of `each` have it, and `fewer` of as many others."""
    both = more + fewer
    ways = [comb(each, count) * comb(each, both - count) for count in range(both + 1)]
    return sum(ways[more:]) / sum(ways)
