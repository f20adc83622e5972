"""State tracking, MQAR and longer tests."""

from pathlib import Path

import pandas as pd
from makers.common import PLACE, RECORDS, copy_report, mean_change, rows_in

from mixerlab.records.names import MIXERS, place_rank, rank
from mixerlab.sweeps.tables.cells import at_best_rate
from mixerlab.sweeps.tables.swept import spread_out
from mixerlab.sweeps.tables.writers import markdown

NOTE = (
    "Share of right answers; epoch and rate (one for all seeds) chosen on validation rows of the trained length; mean"
    " of three seeds ± half of Student's 95% interval."
)


def make(folder: Path, scratch: Path) -> None:
    copy_report(folder, ["clean/settings.md", "clean/difficulty.png"], scratch)
    cell = [*PLACE, "mixer"]
    cells = at_best_rate(spread_out(rows_in("frontier", RECORDS)), cell, "clean").groupby(cell)
    accuracy = cells["clean_token_accuracy"]
    columns = {
        "token accuracy": accuracy.agg(mean_change, ".3f"),
        "worst seed": accuracy.min().map("{:.3f}".format),
        "learning rate": cells["lr"].first().map("{:g}".format),
    }
    table = pd.DataFrame(columns)
    table = table.loc[sorted(table.index, key=lambda cell: (place_rank(cell), rank(cell[2], MIXERS)))]
    (folder / "clean" / "token_accuracy.md").write_text(markdown(table, NOTE))
