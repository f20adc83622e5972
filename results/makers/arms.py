"""Parallax's four arms."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from makers import common
from makers.common import PLACE, mean_change, rows_in, write_in_page

from mixerlab.records.best import Selection
from mixerlab.records.names import TASKS, is_challenge
from mixerlab.sweeps.tables.cells import at_best_rate
from mixerlab.sweeps.tables.writers import in_place_order

ARM = ["mixer.zero_init_rho", "mixer.rope_on_rho"]
AUTHORS = (False, True)  # of ARM
LONG = ("seq_len-512", "seq_len-1024")


def make(folder: Path, scratch: Path) -> None:
    rows = rows_in("arms")
    challenge = rows["task"].map(is_challenge)
    hard = challenge_rows(rows[challenge])
    write_in_page(folder, "challenge", challenge_table(hard))
    write_in_page(folder, "layers", layers_table(rows_in("arms", "layers.csv.xz")))
    rows = rows[~challenge]
    write_in_page(folder, "arms", arms_table(rows))
    short = rows[~rows["setting"].isin(LONG)]
    means = {
        "up to 256 tokens": short,
        "these without fcr": short[short["task"] != "fcr"],
        "all, seeds 0 to 2": rows[rows["seed"] < 3],
        "the challenge": hard,
    }
    write_in_page(folder, "means", means_table(means))
    write_in_page(folder, "learned", learned_table(rows))


def name_of(arm: tuple[bool, bool]) -> str:
    zero, rotated = arm
    return f"W_R {'zero' if zero else 'random'}, rho {'' if rotated else 'not '}rotated"


def effect(accuracies: pd.DataFrame, choice: str) -> pd.Series:
    """What a choice changes, by line, in the mean over the arms: the columns."""
    means = accuracies.T.groupby(level=choice).mean().T
    return means[True] - means[False]


def arms_table(rows: pd.DataFrame) -> pd.DataFrame:
    """All arms, over the settings that all have, and what each of the two choices changes."""
    rows = rows.assign(task=rows["task"].where(~rows["setting"].isin(LONG), rows["task"] + ", " + rows["setting"]))
    best = at_best_rate(rows, [*ARM, *PLACE], "clean")
    seeds = best.groupby([*ARM, "task", "seed"])["clean_accuracy"].mean().unstack(ARM).dropna()
    tasks = seeds[seeds.index.isin(TASKS, level="task")]
    means = {"mean": tasks.groupby("seed").mean(), "mean without fcr": tasks.drop("fcr").groupby("seed").mean()}
    seeds = pd.concat([tasks, pd.concat(means, names=["task"]), seeds.drop(tasks.index)])
    table = seeds.groupby("task", sort=False).mean().map("{:.3f}".format)
    table.columns = [name_of(arm) for arm in seeds]
    for name, choice in zip(("W_R zero", "rotating rho"), ARM, strict=True):
        table[f"effect of {name}"] = effect(seeds, choice).groupby("task", sort=False).agg(mean_change)
    return table


def means_table(rows: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """What the choices and whole arms change in the mean over settings, by what chooses and by which accuracy."""
    measures: dict[str, tuple[Selection, str]] = {
        "test, chosen on validation": ("clean", "clean_accuracy"),
        "test, chosen on test": ("official", "official_accuracy"),
        "validation, chosen on it": ("clean", "clean_val_accuracy"),
    }
    changes = {}
    for settings, own in rows.items():
        for told, (selection, accuracy) in measures.items():
            best = at_best_rate(own, [*ARM, *PLACE], selection)
            tasks = best.groupby([*ARM, "task", "seed"])[accuracy].mean()
            arms = tasks.groupby([*ARM, "seed"]).mean().unstack(ARM)
            changes[settings, told] = {
                "W_R zero": effect(arms, ARM[0]),
                "rho rotated": effect(arms, ARM[1]),
                "arm zero, rotated": arms[True, True] - arms[AUTHORS],
                "arm zero, not rotated": arms[True, False] - arms[AUTHORS],
            }
    table = pd.DataFrame.from_dict(changes, "index").map(mean_change)
    return table.rename_axis(["mean over settings", "of"])


def learned_table(rows: pd.DataFrame) -> pd.DataFrame:
    """How many replicas of each arm learned a setting that all were run on, where some did and some did not."""
    learned = rows.assign(learned=np.isfinite(rows["steps_to_90"]))
    counts = learned.groupby([*PLACE, *ARM])["learned"].sum().unstack(ARM).dropna()
    shares = learned.groupby(PLACE)["learned"].mean().reindex(counts.index)
    return (
        in_place_order(counts[shares.between(0, 1, inclusive="neither")])
        .map("{:.0f}".format)
        .set_axis(map(name_of, counts), axis=1)
    )


def challenge_rows(others: pd.DataFrame) -> pd.DataFrame:
    """All arms on the levels that these two were run on."""
    both = [rows_in("challenge", file) for file in (common.RECORDS, common.FORMER)]
    rows = pd.concat([*(own[own["mixer"] == "parallax"] for own in both), others], join="inner")
    return rows[rows["task"].isin(others["task"]) & rows["lr"].isin(common.RATES)]


def challenge_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each arm and level, how many replicas learned it, and each seed's best accuracy."""
    arms = {name_of(arm): common.best_of_seeds(own, common.RATES).groupby(PLACE) for arm, own in rows.groupby(ARM)}
    table = pd.DataFrame({name: seeds.apply(common.learned_and_best) for name, seeds in arms.items()})
    return in_place_order(table)


def layers_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Parallax's default, and what other layers change, by seed, each setting at the rate best on validation."""
    best = at_best_rate(rows, ["layer", *PLACE], "clean")
    scores = best.set_index([*PLACE, "seed", "layer"])["clean_accuracy"].unstack()
    table = scores.groupby(PLACE)[["ours"]].mean().map("{:.3f}".format)
    for layer in rows["layer"].unique():
        if layer != "ours":
            changes = (scores[layer] - scores["ours"]).groupby(PLACE)
            table[f"{layer}, less ours"] = changes.agg(mean_change, usual=5)
    return in_place_order(table)
