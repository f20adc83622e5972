"""Mixers by optimizers."""

from pathlib import Path

import pandas as pd
from makers.common import best_of_seeds, copy_report, folder_of, gain_of, mean_change, noted, recipe_table, rows_in

from mixerlab.records.names import place_rank
from mixerlab.sweeps.tables.collect import rows_of

GAINS_NOTE = """\
Accuracy of Parallax less attention's, each seed at its better rate and at the checkpoint of the lowest test loss; after
±, half of Student's 95% interval over the seeds that both have (how many, if not three)."""
SEARCH_NOTE = """\
Mean validation accuracy over the three mixers and both tasks at the checkpoint of the lowest validation loss, one seed;
what diverged counts as 0. Bold: the best rate and the better of its neighbours, which the board has."""


def make(scratch: Path) -> None:
    """Mixers by optimizers, what Parallax gains over attention with each, and the search for the rates."""
    folder = folder_of("board")
    copy_report("board", ["official/solved.md", "official/settings.png"], scratch, "rows.csv")
    rows = rows_of(folder / "rows.csv")
    seeds = {name: best_of_seeds(own, sorted(own["lr"].unique())) for name, own in rows.groupby("optimizer")}
    (folder / "accuracy.md").write_text(recipe_table(seeds))
    gains = {name: gain_of(own) for name, own in seeds.items()}
    by_cell = pd.concat(gains, names=["optimizer"]).dropna().unstack("optimizer").groupby(["task", "setting"])
    lines = [["task", "setting", *gains]]
    for cell, own in sorted(by_cell, key=lambda one: place_rank(one[0])):
        entries = [list(own[name].dropna()) for name in gains]
        texts = [mean_change(one) + ("" if len(one) == 3 else f" ({len(one)})") if one else "" for one in entries]
        lines.append([*cell, *texts])
    (folder / "gains.md").write_text(noted(lines, 2, GAINS_NOTE))
    searched = rows_in("board", "search.csv")
    searched = searched.assign(score=searched["clean_val_accuracy"].where(searched["status"] == "finished", 0.0))
    means = searched.groupby(["optimizer", "lr"])["score"].mean().unstack()
    lines = [["optimizer", *(f"{rate:g}" for rate in means)]]
    for name, own in means.iterrows():
        best = own.argmax()
        chosen = {best, max({best - 1, best + 1} & {*range(len(own))}, key=lambda place: own.iloc[place])}
        lines.append([name, *(f"**{x:.3f}**" if i in chosen else f"{x:.3f}" for i, x in enumerate(own))])
    (folder / "rates.md").write_text(noted(lines, 1, SEARCH_NOTE))
