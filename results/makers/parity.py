"""Our runs beside those of mad-lab."""

from pathlib import Path

import pandas as pd
from makers.common import CELL, RECORDS, difference_of_means, rows_in

from mixerlab.sweeps.tables.writers import markdown

KEY = [*CELL, "lr", "weight_decay", "seed"]
NOTE = "In brackets, lowest to highest seed; after ±, half of Welch's interval of 95%."


def make(folder: Path, scratch: Path) -> None:
    """Joins our runs with mad-lab's, `theirs.csv`."""
    ours = rows_in("parity", RECORDS).query("status == 'finished'")
    ours["setting"] = ours["setting"].str.partition(", ")[0]  # without the digest of the data, which both sides read
    ours = ours.rename(columns={"official_accuracy": "ours", "official_epoch": "our_epoch"})
    theirs = rows_in("parity", "theirs.csv").rename(columns={"accuracy": "theirs", "best_epoch": "their_epoch"})
    rows = theirs.merge(ours, on=KEY, suffixes=("", " of ours"), validate="one_to_one").sort_values(KEY)
    rows = rows[[*KEY, "theirs", "their_epoch", "ours", "our_epoch"]]
    rows.to_csv(folder / "rows.csv", index=False, lineterminator="\n")
    cells = rows.groupby(CELL)
    table = cells.apply(beside)
    for name, side in {"mad-lab": "their_epoch", "ours": "our_epoch"}.items():
        table[f"best epoch, {name}"] = cells[side].agg(lambda epochs: f"{epochs.min():.0f} to {epochs.max():.0f}")
    float32 = rows_in("parity", "float32.csv").query("2 <= epoch <= 11")
    means = float32.groupby(["seed", "side"])["test_accuracy"].mean().unstack().rename(columns={"mad-lab": "theirs"})
    place = "attn", "icr", "num_train_examples-800, float32 on a CPU"
    table.loc[place, :] = [*beside(means), *["mean of 2 to 11"] * 2]
    (folder / "rows.md").write_text(markdown(table, NOTE))


def beside(seeds: pd.DataFrame) -> pd.Series:
    """Mean and range over seeds of `theirs` and `ours`, and the difference."""
    theirs, ours = seeds["theirs"], seeds["ours"]
    texts = [f"{own.mean():.3f} ({own.min():.3f} to {own.max():.3f})" for own in (theirs, ours)]
    return pd.Series([*texts, difference_of_means(list(ours), list(theirs))], ["mad-lab", "ours", "difference"])
