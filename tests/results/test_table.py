"""The table's rows have the default recipe, also those that the screen made."""

import pandas as pd

from mixerlab.results import plan
from mixerlab.results.rows import with_run_ids

ROWS = pd.read_csv(plan.RESULTS / "table" / "rows.csv")
FINALISTS = ("3093d46", "526ed60")  # with another epsilon in the norms on heads


def test_rows_are_of_runs_of_the_list():
    runs = pd.DataFrame([vars(run) for run in plan.table() if run.task == "mem" and "seed=0" in run.overrides])
    identified = with_run_ids(runs).set_index("run_id")[["mixer", "task", "setting"]]
    mem = ROWS[ROWS["task"] == "mem"].drop_duplicates("run_id").set_index("run_id")[["mixer", "task", "setting"]]
    assert len(mem) >= 26
    assert mem.sort_index().equals(identified.loc[mem.index].sort_index())


def test_attention_and_parallax_have_the_norms_of_the_default():
    made_by = ROWS["git_commit"].str[:7]
    assert set(ROWS[made_by.isin(FINALISTS)]["mixer"]) == {"gdn", "mamba", "mesa"}


def test_a_replica_counts_once():
    assert not ROWS.duplicated(["mixer", "task", "setting", "lr", "seed"]).any()
