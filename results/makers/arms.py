"""Parallax's four arms."""

from pathlib import Path

import numpy as np
from makers.common import folder_of, mean_change, rows_in, write_in_page

from mixerlab.records.names import TASKS, place_rank
from mixerlab.sweeps.tables.cells import at_best_rate

ARM = ["mixer.zero_init_rho", "mixer.rope_on_rho"]
LONG = ("seq_len-512", "seq_len-1024")


def make(scratch: Path) -> None:
    """Parallax's four arms, over the settings that all have, and what each of the two choices changes."""
    rows = rows_in("arms")
    long = rows["setting"].isin(LONG)
    rows["group"] = rows["task"].where(~long, rows["task"] + ", " + rows["setting"])
    best = at_best_rate(rows, [*ARM, "task", "setting"], "clean")
    seeds = best.groupby([*ARM, "group", "seed"])["clean_accuracy"].mean().unstack(ARM)
    tasks = seeds[seeds.index.isin(TASKS, level="group")]
    means = {"mean": tasks, "mean without fcr": tasks.drop("fcr")}
    averaged = [(name, own.groupby("seed").mean()) for name, own in means.items()]
    lines = []
    for task, accuracies in [*tasks.groupby("group"), *averaged, *seeds.drop(tasks.index).groupby("group")]:
        lines.append([task, *(f"{mean:.3f}" for mean in accuracies.mean())])
        for choice in ARM:
            means = accuracies.T.groupby(level=choice).mean().T
            lines[-1].append(mean_change(list(means[True] - means[False])))
    names = [f"W_R {'zero' if zero else 'random'}, rho {'' if rotated else 'not '}rotated" for zero, rotated in seeds]
    header = ["task", *names, "effect of W_R zero", "effect of rotating rho"]
    write_in_page(folder_of("arms"), "arms", [header, *lines], 1)
    learned = rows.assign(learned=np.isfinite(rows["steps_to_90"])).groupby(["task", "setting"])
    counts = learned.filter(lambda own: 0 < own["learned"].sum() < len(own))
    counts = counts.groupby(["task", "setting", *ARM])["learned"].sum().unstack(ARM)
    counts = counts.loc[sorted(counts.index, key=place_rank)]
    shares = [[*cell, *(str(int(count)) for count in row)] for cell, row in counts.iterrows()]
    write_in_page(folder_of("arms"), "learned", [["task", "setting", *names], *shares], 2)
