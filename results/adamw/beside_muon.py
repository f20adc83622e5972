"""What results/adamw/README.md says of attention and Parallax with AdamW beside Muon, from the rows of both.

    python results/adamw/beside_muon.py results/adamw/beside_muon.md

Needs the repository root on PYTHONPATH. Each optimizer has three learning rates: those of `plan.py adamw`, and with
Muon the paper's. A seed counts if it has all three; a replica is one rate of one seed. It *learned* if its test
accuracy reached 0.9 in any epoch. What recall of 1,024 and 2,048 tokens does at AdamW's lower rate has a table of its
own.
"""

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from mixerlab.records.best import accuracy_of
from mixerlab.results import plan
from mixerlab.results.costs import lengths

RESULTS = Path(__file__).parents[1]
ATTENTION, PARALLAX = MIXERS = ("attn", "parallax")
RATES = {"AdamW": plan.ADAMW_RATES, "Muon": plan.DEFAULT_RATES}
ROWS = {"AdamW": RESULTS / "adamw" / "rows.csv", "Muon": RESULTS / "table" / "rows.csv"}
TIE = 0.01  # of accuracies
SETTING = ["task", "setting"]
LONGEST = 2048
BASELINES = [(task, "baseline") for task in plan.TASKS]
LEVELS = [(task, setting) for task in plan.CHALLENGE for setting in lengths(task)]
RECALL = [level for level in LEVELS if level[0] in plan.RECALL]
GROUPS = {
    "recall up to 1,024 tokens": [level for level in RECALL if lengths(level[0])[level[1]] < LONGEST],
    "recall at 2,048 tokens": [level for level in RECALL if lengths(level[0])[level[1]] == LONGEST],
    "copying": [level for level in LEVELS if level[0] == plan.COPYING],
}


def report() -> str:
    by = {optimizer: replicas(optimizer) for optimizer in RATES}
    grids = "; ".join(f"{optimizer} at {', '.join(rates)}" for optimizer, rates in RATES.items())
    lines = [
        "Made by `python results/adamw/beside_muon.py OUT.md`. Attention and Parallax, each optimizer at three rates:"
        f" {grids}.",
        "",
        *accuracies(by),
        "",
        *leads(by),
        "",
        *lower_rates(read("AdamW")),
    ]
    return "\n".join(lines) + "\n"


def read(optimizer: str) -> pd.DataFrame:
    return pd.read_csv(ROWS[optimizer], low_memory=False)


def replicas(optimizer: str) -> pd.DataFrame:
    return whole_seeds(read(optimizer), floats(RATES[optimizer]))


def floats(rates: Sequence[str]) -> list[float]:
    return [float(rate) for rate in rates]


def whole_seeds(rows: pd.DataFrame, rates: Sequence[float]) -> pd.DataFrame:
    """The replicas of seeds that have all `rates`: a row per mixer, task, setting and seed.

    The columns are (`accuracy` or `learned`, learning rate). A replica that diverged has the accuracy 0, and did not
    learn.
    """
    rows = rows[rows["mixer"].isin(MIXERS) & rows["status"].isin(["finished", "diverged"]) & rows["lr"].isin(rates)]
    rows = rows.assign(
        accuracy=rows.apply(accuracy_of, axis=1, column="official_accuracy"),
        learned=(rows["status"] == "finished") & np.isfinite(rows["steps_to_90"]),
    )
    return rows.pivot(index=["mixer", *SETTING, "seed"], columns="lr", values=["accuracy", "learned"]).dropna()


def accuracies(by: dict[str, pd.DataFrame]) -> list[str]:
    columns = [(optimizer, mixer) for optimizer in by for mixer in MIXERS]
    lines = [
        f"| task | setting | {' | '.join(f'{mixer}, {optimizer}' for optimizer, mixer in columns)} |",
        f"|---|---|{'---|' * len(columns)}",
    ]
    for task, setting in [*BASELINES, *LEVELS]:
        shared = {optimizer: _both(seeds, [(task, setting)]) for optimizer, seeds in by.items()}
        entries = (_entry(shared[optimizer][mixer]) for optimizer, mixer in columns)
        lines.append(f"| `{task}` | {setting} | {' | '.join(entries)} |")
    told = (
        "The mean over seeds of the accuracy at each seed's best rate; in brackets, how many replicas learned. A seed"
        " counts if both mixers have it with that optimizer: three replicas are a seed."
    )
    return [*lines, "", told]


def _entry(seeds: pd.DataFrame) -> str:
    return f"{seeds['accuracy'].max(axis=1).mean():.3f} ({_learned(seeds)})"


def _learned(seeds: pd.DataFrame) -> str:
    return f"{int(seeds['learned'].to_numpy().sum())} of {seeds['learned'].size}"


def leads(by: dict[str, pd.DataFrame]) -> list[str]:
    """Parallax less attention, over the seeds that both have at a level."""
    lines = [
        "| challenge | optimizer | levels and seeds | Parallax less attention | by seed | at the same rate: ahead |"
        " level | behind | learned: attention | Parallax |",
        "|---|---|--:|--:|---|--:|--:|--:|--:|--:|",
    ]
    for name, levels in GROUPS.items():
        for optimizer, seeds in by.items():
            lines.append(_lead(name, optimizer, _both(seeds, levels)))
    told = (
        "*Parallax less attention*: the mean over levels and seeds, each mixer at the best rate of that seed. *By"
        " seed*: the same for each seed, over the levels that have it. *At the same rate*: over levels, seeds and"
        f" rates, how often Parallax is ahead or behind by more than {TIE}. Only seeds that both mixers have"
        " at a level count."
    )
    return [*lines, "", told]


def lower_rates(rows: pd.DataFrame) -> list[str]:
    """Recall at AdamW's lower rate beside its three, over the seeds that have all of them."""
    lower, usual = (whole_seeds(rows, floats(rates)) for rates in (plan.LOW_ADAMW_RATES, plan.ADAMW_RATES))
    shared = lower.index.intersection(usual.index)
    rate = ", ".join(plan.LOW_ADAMW_RATES)
    lines = [
        f"| task | setting | mixer | seeds | at {rate}, by seed | best of the three rates, by seed | learned at {rate}"
        " | at the three |",
        "|---|---|---|---|---|---|--:|--:|",
    ]
    for (task, setting), mixer in product(LEVELS, MIXERS):
        of_cell = shared[shared.droplevel("seed") == (mixer, task, setting)]
        if of_cell.empty:
            continue
        grids = [grid.loc[of_cell] for grid in (lower, usual)]
        seeds = ", ".join(map(str, of_cell.get_level_values("seed")))
        scores = [", ".join(f"{value:.3f}" for value in grid["accuracy"].max(axis=1)) for grid in grids]
        lines.append(f"| {' | '.join([f'`{task}`', setting, mixer, seeds, *scores, *map(_learned, grids)])} |")
    return [*lines, "", "Recall with AdamW at a lower learning rate. Only seeds with all four rates count."]


def _both(seeds: pd.DataFrame, levels: Sequence[tuple[str, str]]) -> dict[str, pd.DataFrame]:
    """By mixer, the replicas of `levels`, without the seeds that the other mixer lacks."""
    of = {mixer: seeds.loc[mixer] for mixer in MIXERS}
    shared = of[ATTENTION].index.intersection(of[PARALLAX].index)
    shared = shared[[(task, setting) in levels for task, setting, _ in shared]]
    return {mixer: of[mixer].loc[shared] for mixer in MIXERS}


def _lead(name: str, optimizer: str, of: dict[str, pd.DataFrame]) -> str:
    parallax, attention = of[PARALLAX]["accuracy"], of[ATTENTION]["accuracy"]
    lead = parallax.max(axis=1) - attention.max(axis=1)
    at_rate = (parallax - attention).to_numpy()
    ahead, behind = (at_rate > TIE).sum(), (at_rate < -TIE).sum()
    entries = [
        name,
        optimizer,
        f"{len(lead)}",
        _signed(lead.mean()),
        ", ".join(map(_signed, lead.groupby(level="seed").mean())),
        *(f"{count}" for count in (ahead, at_rate.size - ahead - behind, behind)),
        *(_learned(of[mixer]) for mixer in MIXERS),
    ]
    return f"| {' | '.join(entries)} |"


def _signed(value: float) -> str:
    return f"{round(value, 3) + 0.0:+.3f}"  # no -0.000


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(report())
