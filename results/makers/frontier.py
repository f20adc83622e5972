"""State tracking, MQAR and longer tests."""

from pathlib import Path

from makers.common import RECORDS, copy_report, mean_change, noted, rows_in

from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.swept import spread_out

FRONTIER_NOTE = (
    "Share of right answers; epoch and rate (one for all seeds) chosen on validation rows of the trained length; mean"
    " of three seeds ± half of Student's 95% interval."
)


def make(folder: Path, scratch: Path) -> None:
    copy_report(folder, ["clean/settings.md", "clean/difficulty.png"], scratch)
    rows = rows_in("frontier", RECORDS)
    by_replica = rows.set_index(["run_id", "replica"])
    lines = []
    for cell in best_per_cell(spread_out(rows), "clean").itertuples():
        if cell.n:
            scores = list(by_replica.loc[list(cell.replicas), "clean_token_accuracy"])
            entry = mean_change(scores, ".3f")
            lines.append([cell.task, cell.setting, cell.mixer, entry, f"{min(scores):.3f}", f"{cell.lr:g}"])
    header = ["task", "setting", "mixer", "token accuracy", "worst seed", "learning rate"]
    (folder / "clean" / "token_accuracy.md").write_text(noted([header, *lines], 3, FRONTIER_NOTE))
