"""AdamW beside Muon."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd
from makers import common

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
        seeds = common.best_of_seeds(rows[rows["mixer"].isin(["attn", "parallax"])], rates)
        recipes[optimizer] = seeds.groupby(["task", "setting", "seed"]).filter(lambda both: len(both) == 2)
    cells, others = (seeds.index.droplevel(["mixer", "seed"]) for seeds in recipes.values())
    recipes["Muon"] = recipes["Muon"][others.isin(cells)]
    (folder / "beside_muon.md").write_text(common.recipe_table(recipes))
    common.write_in_page(folder, "gains", gains_lines(recipes), 1)
    common.write_in_page(folder, "learned", learned_lines(recipes), 1)
    common.write_in_page(folder, "longer", longer_lines(adamw, common.rows_in("adamw", "longer.tar.xz")), 2)


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


def gains_lines(recipes: Mapping[str, pd.DataFrame]) -> list[list[str]]:
    """What Parallax gains over attention with each optimizer, by seed of those that have all levels of the kind."""
    gains = {optimizer: common.gain_of(seeds).unstack(["task", "setting"]) for optimizer, seeds in recipes.items()}
    lines = [["levels", *gains]]
    for kind, places in kinds_of(gains["AdamW"]).items():
        sides = [own[places].dropna().mean(axis=1).sort_index() for own in gains.values()]
        lines.append([kind, *(", ".join(f"{gain:+.3f}" for gain in side) for side in sides)])
    return lines


def learned_lines(recipes: Mapping[str, pd.DataFrame]) -> list[list[str]]:
    """How many replicas learned a level, 90% once."""
    counts = pd.concat(recipes, names=["optimizer"]).groupby(["optimizer", "mixer", "task", "setting"])
    by_level = counts[["learned", "replicas"]].sum().unstack(["task", "setting"])
    lines = [["levels", *(f"{mixer}, {optimizer}" for optimizer, mixer in by_level.index)]]
    for kind, places in kinds_of(by_level["learned"]).items():
        own = [by_level[of][places].sum(axis=1).astype(int) for of in ("learned", "replicas")]
        lines.append([kind, *(f"{some} of {count}" for some, count in zip(*own, strict=True))])
    return lines


def longer_lines(usual: pd.DataFrame, longer: pd.DataFrame) -> list[list[str]]:
    """The accuracy of each seed of the longer runs, beside the usual ones of their cells, seeds and rate."""
    key = ["task", "setting", "mixer", "epochs", "seed"]
    both = pd.concat([usual[usual["lr"].isin(longer["lr"].unique())], longer])
    accuracy = both.set_index(key).sort_index()["official_accuracy"].unstack(["mixer", "epochs"]).dropna()
    lines = [["task", "level", *(f"{mixer}, {epochs} epochs" for mixer, epochs in accuracy)]]
    for place, seeds in accuracy.groupby(["task", "setting"]):
        lines.append([*place, *(", ".join(map("{:.3f}".format, own)) for _, own in seeds.items())])
    return lines
