"""The table's rows have the default recipe, also those that the screen made."""

import pandas as pd
import pytest

from mixerlab.results import plan
from mixerlab.results.rows import with_run_ids
from mixerlab.sweeps.report.published import read_published

ROWS = pd.read_csv(plan.RESULTS / "table" / "rows.csv")
PAPERS = read_published(plan.RESULTS / "published" / "parallax_paper.json")["rates"]
FINALISTS = ("3093d46", "526ed60")  # with another epsilon in the norms on heads


def listed(values):
    return f"[{','.join(map(str, values))}]" if len(values) > 1 else str(values[0])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("mixer", plan.MIXERS)
def test_rows_have_the_recipe_of_the_configs(mixer):
    runs = {}
    for run, of_run in ROWS[(ROWS["task"] == "mem") & (ROWS["mixer"] == mixer)].groupby("run_id"):
        first, rates, seeds = of_run.iloc[0], of_run["lr"].unique(), of_run["seed"].unique()
        cell = f"mixer={first['mixer']} task=mem task.setting={first['setting']}"
        runs[run] = f"{cell} optimizer.lr={listed(rates)} seed={listed(seeds)}"
    assert len(runs) >= 10
    assert list(runs) == list(with_run_ids(pd.DataFrame({"overrides": runs.values()}))["run_id"])


def test_every_cell_has_the_default_rates():
    first = ROWS[ROWS["task"].isin(plan.TASKS) & (ROWS["seed"] == 0) & ROWS["lr"].isin(PAPERS)]
    assert len(first) == 330 * 3


def test_attention_and_parallax_have_the_norms_of_the_default():
    made_by = ROWS["git_commit"].str[:7]
    assert set(ROWS[made_by.isin(FINALISTS)]["mixer"]) == {"gdn", "mamba", "mesa"}


MEANS = {
    "cmp": "compression (`cmp`)",
    "icr": "in-context recall (`icr`)",
    "fcr": "fuzzy recall (`fcr`)",
    "ncr": "noisy recall (`ncr`)",
    "mem": "memorization (`mem`)",
    "sc": "selective copying (`sc`)",
}


def means(rows):
    """By task and mixer, with the mean over tasks last: at the best rate over seeds, of those that most seeds have."""
    cell = ["task", "mixer", "setting"]
    of_rates = rows[rows["task"].isin(MEANS)].groupby([*cell, "lr"])["official_accuracy"].agg(["mean", "size"])
    most = of_rates.groupby(cell)["size"].transform("max")
    of_settings = of_rates[of_rates["size"] == most].groupby(cell)["mean"].max()
    of_tasks = of_settings.groupby(level=[0, 1]).mean().unstack()[list(plan.MIXERS)].loc[list(MEANS)]
    return pd.concat([of_tasks, of_tasks.mean().to_frame("mean").T])


def test_the_pages_have_the_means_of_the_rows():
    """The front page's, and those at the paper's rates in brackets on the table's own page."""
    wide, papers = means(ROWS), means(ROWS[ROWS["lr"].isin(PAPERS)])
    front = (plan.RESULTS.parent / "README.md").read_text()
    page = (plan.RESULTS / "table" / "README.md").read_text()
    for task, name in [*MEANS.items(), ("mean", "mean")]:
        both = list(zip(wide.loc[task], papers.loc[task], strict=True))
        assert f"| {name} | {' | '.join(f'{one:.3f}' for one, _ in both)} |\n" in front
        assert f"| {name} | {' | '.join(f'{one:.3f} ({other:.3f})' for one, other in both)} |\n" in page


def test_a_replica_counts_once():
    assert not ROWS.duplicated(["mixer", "task", "setting", "lr", "seed"]).any()
