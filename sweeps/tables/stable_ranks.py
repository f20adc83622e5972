"""The Parallax paper's table of stable ranks, from the rows of `mixerlab analyse` (`sweeps.figures.inside`)."""

import pandas as pd

from mixerlab.records.names import MIXERS, natural, place_rank, rank
from mixerlab.records.text import escape_markdown
from mixerlab.sweeps.tables.intervals import mean_text
from mixerlab.sweeps.tables.writers import markdown

WEIGHTS = ("W_Q", "W_K", "W_V", "W_O", "W_R", "W_QK", "W_OV", "W_RK")  # those of the paper, before others
NOTE = """\
Stable ranks, averaged over layers and, of the circuits W_QK, W_OV and W_RK, over heads; mean over seeds ± half of
Student's 95% interval."""


def stable_ranks(frame: pd.DataFrame) -> str:
    """A line for each task and weight, a column for each mixer and variant; Markdown.

    `frame` has the weights of one moment of each replica.
    """
    ranks = frame[frame["measure"].str.startswith("srank ")]
    ranks = ranks.assign(weight=ranks["measure"].str.removeprefix("srank "))
    by = ["task", "setting", "weight", "mixer", "variant"]
    seeds = ranks.groupby([*by, "run_id", "replica"])["mean"].mean().groupby(by)
    table = seeds.agg(lambda own: mean_text(list(own.dropna()), ".1f")).unstack(["mixer", "variant"])
    weights = list(dict.fromkeys([*WEIGHTS, *ranks["weight"]]))
    lines = sorted(table.index, key=lambda line: (place_rank(line[:2]), weights.index(line[2])))
    columns = sorted(table, key=lambda column: (rank(column[0], MIXERS), natural(column[1])))
    table = table.loc[lines, columns].set_axis([", ".join(filter(None, column)) for column in columns], axis=1)
    return markdown(table, NOTE, escape_markdown)
