"""AdamW beside Muon."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from makers import common
from makers.common import CELL, PLACE, write_in_page

from mixerlab.records.names import is_challenge

Place = tuple[str, str]


def make(folder: Path, scratch: Path) -> None:
    """Only cells that were run with AdamW count, and seeds that both mixers have."""
    common.copy_report(folder, ["official/settings.md", "official/solved.md"], scratch)
    adamw, challenge = (common.rows_in(name, common.RECORDS) for name in ("adamw", "challenge"))
    attention, former = challenge[challenge["mixer"] == "attn"], common.rows_in("challenge", common.FORMER)
    muon = pd.concat([common.rows_in("table", common.EARLIER), attention, former], ignore_index=True)
    recipes = {}
    for optimizer, rows, rates in (("AdamW", adamw, common.ADAMW_RATES), ("Muon", muon, common.RATES)):
        seeds = common.best_of_seeds(rows.merge(adamw[CELL].drop_duplicates()), rates)
        recipes[optimizer] = seeds.groupby([*PLACE, "seed"]).filter(lambda both: len(both) == 2)
    (folder / "beside_muon.md").write_text(common.recipe_table(recipes))
    seeds = pd.concat(recipes, names=["optimizer"])
    places = seeds.index.droplevel(["optimizer", "mixer", "seed"])
    by_kind = {kind: seeds[places.isin(own)] for kind, own in kinds_of(places.unique()).items()}
    seeds = pd.concat(by_kind, names=["levels"])
    write_in_page(folder, "gains", gains_table(seeds["accuracy"]))
    write_in_page(folder, "learned", learned_table(seeds))
    write_in_page(folder, "longer", longer_table(adamw, common.rows_in("adamw", "longer.tar.xz")))


def kinds_of(places: Iterable[Place]) -> dict[str, list[Place]]:
    """The levels of the challenge, (task, setting), by kind."""
    levels = [place for place in places if is_challenge(place[0])]
    recall = [place for place in levels if place[0] != "sc_challenge"]
    return {
        "recall at 512 and 1,024 tokens": [place for place in recall if "2048" not in place[1]],
        "recall at 2,048 tokens": [place for place in recall if "2048" in place[1]],
        "copying at 512 to 2,048 tokens": [place for place in levels if place not in recall],
        "all nine levels": levels,
    }


def gains_table(accuracy: pd.Series) -> pd.DataFrame:
    """What Parallax gains over attention with each optimizer, by seed of those that have all levels of the kind."""

    def by_seed(gains: pd.Series) -> str:
        return ", ".join(map("{:+.3f}".format, gains.unstack(PLACE).dropna().mean(axis=1)))

    by_mixer = accuracy.unstack("mixer", sort=False)
    gains = (by_mixer["parallax"] - by_mixer["attn"]).groupby(["levels", "optimizer"], sort=False)
    return gains.agg(by_seed).unstack(sort=False)


def learned_table(seeds: pd.DataFrame) -> pd.DataFrame:
    """How many replicas learned a level, 90% once."""
    counts = seeds.groupby(["levels", "optimizer", "mixer"], sort=False)[["learned", "replicas"]].sum().astype(str)
    table = (counts["learned"] + " of " + counts["replicas"]).unstack(["optimizer", "mixer"], sort=False)
    return table.set_axis([f"{mixer}, {optimizer}" for optimizer, mixer in table], axis=1)


def longer_table(usual: pd.DataFrame, longer: pd.DataFrame) -> pd.DataFrame:
    """The accuracy of each seed of the longer runs, beside the usual ones of their cells, seeds and rate."""
    both = pd.concat([usual[usual["lr"].isin(longer["lr"].unique())], longer]).sort_values(["epochs", "mixer"])
    accuracy = both.pivot(index=[*PLACE, "seed"], columns=["mixer", "epochs"], values="official_accuracy").dropna()
    table = accuracy.groupby(PLACE).agg(lambda seeds: ", ".join(map("{:.3f}".format, seeds)))
    table = table.set_axis([f"{mixer}, {epochs} epochs" for mixer, epochs in table], axis=1)
    return table.rename_axis(["task", "level"])
