"""The challenge and its other recipes."""

import shutil
from math import comb
from pathlib import Path

import pandas as pd
from makers.common import PAPER, RATES, RECORDS, best_of_seeds, copy_report, recipe_table, rows_in, write_in_page

from mixerlab.records.names import is_challenge
from mixerlab.sweeps.report.compare import compare
from mixerlab.sweeps.tables.swept import spread_out


def make(folder: Path, scratch: Path) -> None:
    copy_report(folder, ["official/challenge.md", "official/solved.md"], scratch)
    compare([folder / RECORDS], scratch / "beside", {"parallax": PAPER})
    for made, kept in (("settings.png", "beside_the_paper.png"), ("published.md", "beside_the_paper.md")):
        shutil.copyfile(scratch / "beside" / made, folder / "official" / kept)
    default, others = (rows_in("challenge", file) for file in (RECORDS, "recipes.tar.xz"))
    both = pd.concat([default.assign(origin="default"), others.assign(origin="recipes")], ignore_index=True)
    both = spread_out(both[both["task"].isin(others["task"])])
    usual = {column.mixer: set(column.values) for column in both.loc[both["origin"] == "default", "column"].unique()}
    both["recipe"] = [
        ", ".join(f"{key}={value}" for key, value in column.values if (key, value) not in usual[column.mixer])
        or "default"
        for column in both["column"]
    ]
    recipes = {name: best_of_seeds(rows, RATES) for name, rows in both.groupby("recipe", sort=False)}
    (folder / "recipes.md").write_text(recipe_table(recipes))
    write_in_page(folder, "recall", recall_lines(default), 2)


def recall_lines(default: pd.DataFrame) -> list[list[str]]:
    """Attention, and Parallax as it was and as its authors have it, on the levels that the latter has rows of."""
    arms = rows_in("arms")
    authors = arms[arms["task"].map(is_challenge)]
    parallax = default[default["mixer"] == "parallax"]
    sides = {"attn": default[default["mixer"] == "attn"], "the former Parallax": parallax, "today's Parallax": authors}
    lines = [["task", "level", *sides]]
    learned: dict[str, list[int]] = {side: [] for side in sides}  # rates by task and seed
    for (task, level), own in authors.groupby(["task", "setting"]):
        lines.append([task, level])
        for side, rows in sides.items():
            seeds = best_of_seeds(rows[(rows["task"] == task) & (rows["setting"] == level)], RATES).sort_index()
            assert seeds["replicas"].sum() == len(own), f"{side} has other replicas"
            learned[side] += seeds["learned"].tolist()
            best = ", ".join(f"{accuracy:.3f}" for accuracy in seeds["accuracy"])
            lines[-1].append(f"{seeds['learned'].sum()} of {len(own)} ({best})")
    lines.append(["both", "", *(f"{sum(own)} of {len(authors)}" for own in learned.values())])
    attention, *others = [sum(map(bool, own)) for own in learned.values()]
    each = len(learned["attn"])
    lines.append(["task and seed", "", *(f"{count} of {each}" for count in (attention, *others))])
    return [*lines, ["p", "", "", *(f"{fisher(count, attention, each):.3f}" for count in others)]]


def fisher(more: int, fewer: int, each: int) -> float:
    """The one-sided p of Fisher's exact test: `more` of `each` have it, and `fewer` of as many others."""
    both = more + fewer
    ways = [comb(each, count) * comb(each, both - count) for count in range(both + 1)]
    return sum(ways[more:]) / sum(ways)
