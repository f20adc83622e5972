"""Rows of lists of runs: each replica of their records, with the recipe that its list gives it.

    python results/rows.py RESULTS_DIR LIST.csv ... OUT.csv

Needs the repository root on PYTHONPATH.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from hydra import compose, initialize_config_dir

from mixerlab.config.settings import register_resolvers
from mixerlab.config.values import checked
from mixerlab.records.identity import run_id
from mixerlab.results.train import check_lists
from mixerlab.sweeps.tables.collect import collect

ROOT = Path(__file__).parents[1]
register_resolvers()
KEPT = ["run_id", "replica", "lr", "seed", "status", "steps", "steps_to_90", "num_params", "official_accuracy"]
KEPT += [
    "official_token_accuracy",
    "official_epoch",
    "clean_accuracy",
    "clean_val_accuracy",
    "test_accuracy",
    "train_loss",
]
KEPT += [
    "device",
    "precision",
    "wall_time_s",
    "command",
    "code.mixer",  # as records called it until 2026-11-22
    "code.task",
    "code_version.mixer",
    "code_version.task",
    "git_commit",
    "versions.torch",
    "versions.triton",
]


def with_run_ids(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of a list with the `run_id` that the configs now give to their overrides."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        ids = [run_id(checked(compose("config", text.split()))[1]) for text in runs["overrides"]]
    return runs.assign(run_id=ids)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results_dir", metavar="RESULTS_DIR")
    parser.add_argument("lists", nargs="+", metavar="LIST.csv")
    parser.add_argument("out", metavar="OUT.csv")
    given = parser.parse_args(arguments)
    check_lists(parser, given.lists)
    if not Path(given.results_dir).is_dir():
        parser.error(f"there is no folder {given.results_dir}: name a results folder")
    runs = with_run_ids(pd.concat([pd.read_csv(path) for path in given.lists], ignore_index=True))
    runs = runs.drop_duplicates("run_id")  # a later list may have what an earlier one had no time for
    frame = collect(given.results_dir)
    frame = frame[[column for column in KEPT if column in frame]]
    joined = runs.drop(columns=["unit", "overrides", "seconds"], errors="ignore").merge(frame, on="run_id", how="inner")
    joined["wall_time_s"] = joined["wall_time_s"].round(2)
    joined.to_csv(given.out, index=False)
    statuses = joined["status"].value_counts().to_dict()
    print(f"{joined['run_id'].nunique()} of {len(runs)} runs, {len(joined)} replicas: {statuses}")


if __name__ == "__main__":
    main()
