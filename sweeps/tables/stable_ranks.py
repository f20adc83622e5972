"""The Parallax paper's table of stable ranks, from the rows of `mixerlab analyse` (`sweeps.figures.inside`)."""

import pandas as pd

from mixerlab.records.names import MIXERS, natural, place_rank, rank
from mixerlab.records.text import escape_markdown
from mixerlab.sweeps.tables.intervals import mean_text
from mixerlab.sweeps.tables.writers import aligned

WEIGHTS = ("W_Q", "W_K", "W_V", "W_O", "W_R", "W_QK", "W_OV", "W_RK")  # those of the paper, before others
NOTE = """\
Stable ranks, averaged over layers and, of the circuits W_QK, W_OV and W_RK, over heads; mean over seeds ± half of
Student's 95% interval."""


def stable_ranks(frame: pd.DataFrame) -> str:
    """A line for each task and weight, a column for each mixer and variant; Markdown.

    `frame` has the weights of one moment of each replica.
    """
    frame = frame[frame["measure"].str.startswith("srank ")]
    names = dict.fromkeys([*WEIGHTS, *frame["measure"].str.removeprefix("srank ")])
    by_replica = frame.groupby(["task", "setting", "mixer", "variant", "measure", "run_id", "replica"])["mean"].mean()
    columns = sorted(
        set(zip(frame["mixer"], frame["variant"], strict=True)), key=lambda c: (rank(c[0], MIXERS), natural(c[1]))
    )
    lines = [["task", "setting", "weight", *(escape_markdown(", ".join(filter(None, column))) for column in columns)]]
    for place in sorted(set(zip(frame["task"], frame["setting"], strict=True)), key=place_rank):
        for name in names:
            entries = [by_replica.get((*place, *column, f"srank {name}")) for column in columns]
            if any(entry is not None for entry in entries):
                seeds = ([] if entry is None else list(entry.dropna()) for entry in entries)
                lines.append([*place, name, *(mean_text(own, ".1f") for own in seeds)])
    return f"{aligned(lines, 3)}\n\n{NOTE}\n"
