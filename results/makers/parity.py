"""Our runs beside those of mad-lab."""

from pathlib import Path
from statistics import fmean

from makers.common import CELL, RECORDS, difference_of_means, folder_of, noted, rows_in

from mixerlab.sweeps.tables.collect import rows_of

PARITY_KEY = [*CELL, "lr", "weight_decay", "seed"]


def make(scratch: Path) -> None:
    """Joins our runs with mad-lab's, `theirs.csv`."""
    folder = folder_of("parity")
    ours = rows_of(folder / RECORDS)
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
        sides = [list(cell[side]) for side in ("theirs", "ours")]
        shown = [f"{fmean(side):.3f} ({min(side):.3f} to {max(side):.3f})" for side in sides]
        shown.append(difference_of_means(sides[1], sides[0]))
        epochs = [f"{cell[side].min():.0f} to {cell[side].max():.0f}" for side in ("their_epoch", "our_epoch")]
        lines.append([*key, *shown, *epochs])
    header = ["mixer", "task", "setting", "mad-lab", "ours", "difference", "best epoch, mad-lab", "best epoch, ours"]
    note = "In brackets, lowest to highest seed; after ±, half of Welch's interval of 95%."
    (folder / "rows.md").write_text(noted([header, *lines], 3, note))
