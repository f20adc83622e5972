"""Our runs beside those of mad-lab."""

from pathlib import Path

import pandas as pd
from makers.common import CELL, RECORDS, difference_of_means, noted, rows_in

PARITY_KEY = [*CELL, "lr", "weight_decay", "seed"]


def make(folder: Path, scratch: Path) -> None:
    """Joins our runs with mad-lab's, `theirs.csv`."""
    ours = rows_in("parity", RECORDS)
    ours = ours[ours["status"] == "finished"].rename(
        columns={"official_accuracy": "ours", "official_epoch": "our_epoch"}
    )
    ours["setting"] = ours["setting"].str.partition(", ")[0]  # without the digest of the data, which both sides read
    theirs = rows_in("parity", "theirs.csv").rename(columns={"accuracy": "theirs", "best_epoch": "their_epoch"})
    rows = theirs[[*PARITY_KEY, "theirs", "their_epoch"]].merge(
        ours[[*PARITY_KEY, "ours", "our_epoch"]], on=PARITY_KEY, validate="one_to_one"
    )
    rows = rows.sort_values(PARITY_KEY)
    rows.to_csv(folder / "rows.csv", index=False, lineterminator="\n")
    lines = []
    for key, cell in rows.groupby(CELL):
        epochs = [f"{cell[side].min():.0f} to {cell[side].max():.0f}" for side in ("their_epoch", "our_epoch")]
        lines.append([*key, *beside(cell["theirs"], cell["ours"]), *epochs])
    float32 = rows_in("parity", "float32.csv")
    means = float32[float32["epoch"].between(2, 11)].groupby(["side", "seed"])["test_accuracy"].mean()
    place = ["attn", "icr", "num_train_examples-800, float32 on a CPU"]
    lines.append([*place, *beside(means["mad-lab"], means["ours"]), *["mean of 2 to 11"] * 2])
    header = ["mixer", "task", "setting", "mad-lab", "ours", "difference", "best epoch, mad-lab", "best epoch, ours"]
    note = "In brackets, lowest to highest seed; after ±, half of Welch's interval of 95%."
    (folder / "rows.md").write_text(noted([header, *lines], 3, note))


def beside(*sides: pd.Series) -> list[str]:
    """Mean and range over seeds of their accuracies and of ours, and the difference."""
    shown = [f"{side.mean():.3f} ({side.min():.3f} to {side.max():.3f})" for side in sides]
    return [*shown, difference_of_means(*map(list, sides[::-1]))]
