"""AdamW beside Muon."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from makers.common import (
    ADAMW_RATES,
    RATES,
    RECORDS,
    best_of_seeds,
    copy_report,
    difference_of_means,
    folder_of,
    gain_of,
    mean_change,
    noted,
    recipe_table,
)

from mixerlab.records.names import is_challenge
from mixerlab.sweeps.tables.collect import rows_of

CLAIM_NOTE = """\
Accuracy of Parallax less that of attention, each at its best of three rates, by seed (how many have all of the levels);
after ±, half of Student's 95% interval over seeds, of the difference Welch's."""


def make(scratch: Path) -> None:
    """Only cells that were run with AdamW count, and seeds that both mixers have."""
    copy_report("adamw", ["official/settings.md", "official/solved.md"], scratch)
    sources = {"AdamW": (folder_of("adamw") / RECORDS, ADAMW_RATES), "Muon": (folder_of("table") / "rows.csv", RATES)}
    recipes = {}
    for optimizer, (source, rates) in sources.items():
        rows = rows_of(source)
        seeds = best_of_seeds(rows[rows["mixer"].isin(["attn", "parallax"])], rates)
        recipes[optimizer] = seeds.groupby(["task", "setting", "seed"]).filter(lambda both: len(both) == 2)
    cells, others = (seeds.index.droplevel(["mixer", "seed"]) for seeds in recipes.values())
    recipes["Muon"] = recipes["Muon"][others.isin(cells)]
    (folder_of("adamw") / "beside_muon.md").write_text(recipe_table(recipes))
    (folder_of("adamw") / "claim.md").write_text(claim_table(recipes))


def claim_table(recipes: Mapping[str, pd.DataFrame]) -> str:
    """What Parallax gains over attention with each optimizer, over the levels of the challenge of a kind.

    Of seeds that have all levels of the kind.
    """
    gains = {optimizer: gain_of(seeds).unstack(["task", "setting"]) for optimizer, seeds in recipes.items()}
    levels = [place for place in gains["AdamW"] if is_challenge(place[0])]
    recall = [place for place in levels if place[0] != "sc_challenge"]
    kinds = {
        "recall at 512 and 1,024 tokens": [place for place in recall if "2048" not in place[1]],
        "recall at 2,048 tokens": [place for place in recall if "2048" in place[1]],
        "copying at 512 to 2,048 tokens": [place for place in levels if place not in recall],
        "all nine levels": levels,
    }
    lines = [["levels", *gains, "Muon less AdamW"]]
    for kind, places in kinds.items():
        sides = [list(own[places].dropna().mean(axis=1)) for own in gains.values()]
        texts = [f"{mean_change(side)} ({len(side)})" for side in sides]
        lines.append([kind, *texts, difference_of_means(sides[1], sides[0])])
    return noted(lines, 1, CLAIM_NOTE)
