"""Makes anew all that is committed of the table, the challenge and AdamW, from their archives of records.

    python results/remake.py

Needs the repository root on PYTHONPATH. Run it after new runs have joined the records.tar.xz of one of the three
folders: it writes the rows of table and challenge, the tables and figures in `official/` and `clean/`, the comparisons
with the paper, results/table/facts.md, results/adamw/beside_muon.md, results/screen/distance.md and the section of
results/README.md that results/reasons.py writes. First run results/rows.py for rows that come with a list of runs, such
as AdamW's. What pages say of these in prose is left to their author; tests compare some of it.
"""

import shutil
import tempfile
from pathlib import Path

from mixerlab.records.archive import restore
from mixerlab.results import reasons
from mixerlab.results.adamw import beside_muon
from mixerlab.results.screen import distance
from mixerlab.results.table import facts
from mixerlab.sweeps.report.compare import compare
from mixerlab.sweeps.report.report import report
from mixerlab.sweeps.tables.collect import collect
from mixerlab.sweeps.tables.table_files import to_rows_csv

RESULTS = Path(__file__).parent
TABLE, CHALLENGE, ADAMW = RESULTS / "table", RESULTS / "challenge", RESULTS / "adamw"
ROWS = TABLE / "rows.csv"
BESIDE = "beside_the_paper.png"  # from `compare`, which names it by the published file


def remake(scratch: Path) -> None:
    for folder in (TABLE, CHALLENGE):
        restore(folder / "records.tar.xz", scratch / "both")
    ROWS.write_text(to_rows_csv(collect(scratch / "both")))
    for folder in (TABLE, CHALLENGE, ADAMW):
        made = report(folder / "records.tar.xz", scratch / folder.name).folder
        for selection in ("official", "clean"):
            for file in sorted((folder / selection).glob("*")):
                if file.name != BESIDE:
                    shutil.copyfile(made / selection / file.name, file)
    for source, of, folder in ((ROWS, "means", TABLE), (CHALLENGE / "records.tar.xz", "settings", CHALLENGE)):
        out = scratch / of
        compare(source, reasons.PAPER, out)
        shutil.copyfile(out / f"{reasons.PAPER.stem}_{of}.png", folder / "official" / BESIDE)
    (TABLE / "facts.md").write_text(facts.report())
    (ADAMW / "beside_muon.md").write_text(beside_muon.report())
    (RESULTS / "screen" / "distance.md").write_text(distance.report())
    reasons.update(ROWS)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        remake(Path(folder))
