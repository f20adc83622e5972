"""Copies the runs of the table that were made before it, for the screen, into an archive.

    python results/table/earlier.py LIST.csv OUT.tar.xz

Needs the repository root on PYTHONPATH. LIST.csv comes from `results/plan.py table`. A run of the screen is part of the
table if it has the default recipe, which its `run_id` tells, and the default's norms on heads, which it does not tell:
the finalists' had another epsilon (../screen/NOTES.md), so attention and Parallax come from the variants only.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import pandas as pd

from mixerlab.results.rows import with_run_ids
from mixerlab.sweeps.archive import pack, restore
from mixerlab.sweeps.collect import collect

SCREEN = Path(__file__).parents[1] / "screen"
SOURCES = {"variants": ("attn", "parallax"), "finalists": ("gdn", "mamba", "mesa")}


def main() -> None:
    table, out = sys.argv[1:]
    listed = set(with_run_ids(pd.read_csv(table))["run_id"])
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "kept")
        for name, mixers in SOURCES.items():
            source = Path(folder, name)
            restore(SCREEN / f"{name}.tar.xz", source)
            rows = collect(source)
            for run in listed & set(rows[rows["mixer"].isin(mixers)]["run_id"]):
                shutil.copytree(source / "runs" / run, kept / "runs" / run)
        print(f"{pack(kept, out)} runs of the table come from the screen")


if __name__ == "__main__":
    main()
