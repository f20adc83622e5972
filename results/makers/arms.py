"""Parallax's four arms."""

from pathlib import Path

import numpy as np
import pandas as pd
from makers.common import FORMER, RECORDS, learned_and_best, mean_change, rows_in, write_in_page

from mixerlab.records.best import Selection
from mixerlab.records.names import TASKS, is_challenge, place_rank
from mixerlab.sweeps.tables.cells import at_best_rate

ARM = ["mixer.zero_init_rho", "mixer.rope_on_rho"]
AUTHORS = (False, True)  # of ARM
LONG = ("seq_len-512", "seq_len-1024")


def make(folder: Path, scratch: Path) -> None:
    """Parallax's four arms, over the settings that all have, and what each of the two choices changes."""
    rows = rows_in("arms")
    challenge = rows["task"].map(is_challenge)
    write_in_page(folder, "challenge", challenge_lines(rows[challenge]), 2)
    rows = rows[~challenge]
    write_in_page(folder, "layers", layers_lines(rows_in("arms", "layers.csv.xz")), 2)
    long = rows["setting"].isin(LONG)
    rows["group"] = rows["task"].where(~long, rows["task"] + ", " + rows["setting"])
    best = at_best_rate(rows, [*ARM, "task", "setting"], "clean")
    seeds = best.groupby([*ARM, "group", "seed"])["clean_accuracy"].mean().unstack(ARM).dropna()
    tasks = seeds[seeds.index.isin(TASKS, level="group")]
    means = {"mean": tasks, "mean without fcr": tasks.drop("fcr")}
    averaged = [(name, own.groupby("seed").mean()) for name, own in means.items()]
    lines = []
    for task, accuracies in [*tasks.groupby("group"), *averaged, *seeds.drop(tasks.index).groupby("group")]:
        effects = [mean_change(effect(accuracies, choice)) for choice in ARM]
        lines.append([task, *(f"{mean:.3f}" for mean in accuracies.mean()), *effects])
    names = [name_of(arm) for arm in seeds]
    header = ["task", *names, "effect of W_R zero", "effect of rotating rho"]
    write_in_page(folder, "arms", [header, *lines], 1)
    write_in_page(folder, "means", means_lines(rows), 2)
    learned = rows.assign(learned=np.isfinite(rows["steps_to_90"])).groupby(["task", "setting"])
    counts = learned.filter(lambda own: 0 < own["learned"].sum() < len(own))
    counts = counts.groupby(["task", "setting", *ARM])["learned"].sum().unstack(ARM)
    counts = counts.loc[sorted(counts.index, key=place_rank)]
    shares = [[*cell, *(str(int(count)) for count in row)] for cell, row in counts.iterrows()]
    write_in_page(folder, "learned", [["task", "setting", *names], *shares], 2)


def name_of(arm: tuple[bool, bool]) -> str:
    zero, rotated = arm
    return f"W_R {'zero' if zero else 'random'}, rho {'' if rotated else 'not '}rotated"


def effect(accuracies: pd.DataFrame, choice: str) -> pd.Series:
    """What a choice changes, by line, in the mean over the arms: the columns."""
    means = accuracies.T.groupby(level=choice).mean().T
    return means[True] - means[False]


def means_lines(rows: pd.DataFrame) -> list[list[str]]:
    """What the choices and whole arms change in the mean over settings, by what chooses and by which accuracy."""
    lines = [["mean over settings", "of", "W_R zero", "rho rotated", "arm zero, rotated", "arm zero, not rotated"]]
    measures: dict[str, tuple[Selection, str]] = {
        "test, chosen on validation": ("clean", "clean_accuracy"),
        "test, chosen on test": ("official", "official_accuracy"),
        "validation, chosen on it": ("clean", "clean_val_accuracy"),
    }
    short = rows[rows["group"].isin(TASKS)]
    for settings, own in {"all": short, "without fcr": short[short["task"] != "fcr"]}.items():
        for told, (selection, accuracy) in measures.items():
            best = at_best_rate(own, [*ARM, "task", "setting"], selection)
            tasks = best.groupby([*ARM, "task", "seed"])[accuracy].mean()
            arms = tasks.groupby([*ARM, "seed"]).mean().unstack(ARM)
            changes = [effect(arms, choice) for choice in ARM]
            changes += [arms[True, rotated] - arms[AUTHORS] for rotated in (True, False)]
            lines.append([settings, told, *map(mean_change, changes)])
    return lines


def challenge_lines(others: pd.DataFrame) -> list[list[str]]:
    """All arms on the levels that these two were run on, with their seeds."""
    both = [rows_in("challenge", file) for file in (RECORDS, FORMER)]
    rows = pd.concat([*(own[own["mixer"] == "parallax"] for own in both), others], join="inner")
    cell = ["task", "setting"]
    rows = rows.merge(others[[*cell, "seed"]].drop_duplicates())
    own = rows.groupby([*cell, *ARM])[rows.columns.tolist()].apply(lambda arm: learned_and_best(arm)[1]).unstack(ARM)
    return [[*cell, *map(name_of, own)], *([*place, *cells] for place, cells in own.iterrows())]


def layers_lines(rows: pd.DataFrame) -> list[list[str]]:
    """Parallax's default, and what other layers change, by seed, each setting at the rate best on validation."""
    best = at_best_rate(rows, ["layer", "task", "setting"], "clean")
    scores = best.set_index(["task", "setting", "seed", "layer"])["clean_accuracy"].unstack()
    others = [layer for layer in rows["layer"].unique() if layer != "ours"]
    lines = [["task", "setting", "ours", *(f"{layer}, less ours" for layer in others)]]
    for cell in sorted(scores.index.droplevel("seed").unique(), key=place_rank):
        own = scores.loc[cell]
        changes = ((own[layer] - own["ours"]).dropna() for layer in others)
        lines.append([*cell, f"{own['ours'].mean():.3f}", *(mean_change(list(change), usual=5) for change in changes)])
    return lines
