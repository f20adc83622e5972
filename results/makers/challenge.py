"""The challenge and its other recipes."""

import shutil
from pathlib import Path

import pandas as pd
from makers.common import PAPER, RATES, RECORDS, best_of_seeds, copy_report, folder_of, recipe_table

from mixerlab.sweeps.report.compare import compare
from mixerlab.sweeps.tables.collect import rows_of
from mixerlab.sweeps.tables.swept import spread_out


def make(scratch: Path) -> None:
    folder = folder_of("challenge")
    copy_report("challenge", ["official/challenge.md", "official/solved.md"], scratch)
    compare([folder / RECORDS], scratch / "beside", {"parallax": PAPER})
    for made, kept in (("settings.png", "beside_the_paper.png"), ("published.md", "beside_the_paper.md")):
        shutil.copyfile(scratch / "beside" / made, folder / "official" / kept)
    default, others = rows_of(folder / RECORDS), rows_of(folder / "recipes.tar.xz")
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
