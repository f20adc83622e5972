"""The Parallax paper's analysis and its claims."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from makers.common import copy_files, markdown

from mixerlab.analyse import write as write_analysis
from mixerlab.records.names import TASKS, in_order
from mixerlab.sweeps.tables.intervals import error_of_mean, half_width

CLAIMS_NOTE = """\
Differences that the claim says to be above or below 0, or none: means over three seeds ± half of Student's 95%
interval, after 60 epochs, over layers if none is named. The ± is over seeds only, also that of the mean of the tasks:
the four tasks are fixed. The verdict is by the interval of that mean: open, or none found, if it includes 0. But it is
mixed if two intervals of a line exclude 0 with opposite signs."""


class Measured(NamedTuple):
    """A measure of `mixerlab analyse`: whose, in which layer (None: the mean over layers), after how many epochs."""

    mixer: str
    variant: str
    measure: str
    layer: int | None = None
    epochs: int = 60
    study: str = "optimizers"


MUON, ADAMW, COSINE, FIRST, LAST = "muon, wsd", "adamw, wsd", "adamw, cosine", 1, -1
Claim = tuple[str, int, Measured, Measured]


def claims() -> Iterator[Claim]:
    """What the paper says, which sign the difference should have (0: none), and the two measures that differ."""

    def larger(text: str, measure: str, less: str = ADAMW, mixer: str = "parallax") -> Claim:
        return text, 1, Measured(mixer, MUON, measure), Measured(mixer, less, measure)

    def beyond(text: str, sign: int, measure: str, optimizer: str, of_attention: str = "") -> Claim:
        attention = Measured("attn", optimizer, of_attention or measure)
        return f"{text} ({optimizer})", sign, Measured("parallax", optimizer, measure), attention

    for name in (MUON, ADAMW, COSINE):
        cor = Measured("parallax", name, "cor", LAST)
        yield f"COR grows with depth ({name})", 1, cor, cor._replace(layer=FIRST)
        change = f"{'exceeds' if name == MUON else 'barely recovers'} that of initial values"
        yield f"COR of the last layer {change} ({name})", int(name == MUON), cor, cor._replace(epochs=0)
        first = cor._replace(layer=FIRST)
        yield f"COR of the first layer falls from initial values ({name})", -1, first, first._replace(epochs=0)
    last = Measured("parallax", MUON, "cor", LAST)
    yield "COR of the last layer is larger with Muon than with AdamW", 1, last, last._replace(variant=ADAMW)
    for name, measure in (("the norm of Corr", "corr"), ("CPA", "cpa"), ("the norm of rho", "norm rho")):
        yield larger(f"{name} is larger with Muon", measure)
    for less in (ADAMW, COSINE):
        for name in ("W_R", "W_RK"):
            yield larger(f"srank {name} collapses ({less})", f"srank {name}", less)
    for mixer in ("attn", "parallax"):
        for name in ("W_Q", "W_K", "W_QK"):
            yield larger(f"srank {name} is larger with Muon ({mixer})", f"srank {name}", mixer=mixer)
    for optimizer in (MUON, ADAMW, COSINE):
        for name in ("W_Q", "W_K", "W_QK"):
            yield beyond(f"srank {name} is that of attention", 0, f"srank {name}", optimizer)
        for name in ("W_V", "W_O", "W_OV"):
            yield beyond(f"srank {name} is above that of attention", 1, f"srank {name}", optimizer)
        yield beyond("the sink in p is weaker than in attention", -1, "sink p", optimizer)
        yield beyond("the sink in s is weaker than in attention", -1, "sink s", optimizer, "sink p")
        yield beyond("the entropy of p is above attention's", 1, "entropy p", optimizer)
    for name, sign in (("muon", 1), ("adamw", -1)):
        gate = Measured("parallax", name, "gate", study="gate")
        yield f"the gate {'opens' if sign > 0 else 'closes'} ({name})", sign, gate, gate._replace(epochs=0)
    annealed = Measured("parallax", "", "norm W_R", study="wda")
    yield "annealed weight decay (gamma = 2) keeps the norm of W_R", 1, annealed, Measured("parallax", MUON, "norm W_R")


def make(folder: Path, scratch: Path) -> None:
    """The figures and tables of `mixerlab analyse` from its rows, and the paper's claims; not the score maps."""
    studies = {
        path.name.partition(".")[0]: pd.read_csv(path, dtype={"variant": str}).fillna({"variant": ""})
        for path in sorted(folder.glob("*.csv.xz"))
    }
    rows = pd.concat(studies, names=["study"]).reset_index("study")
    rows = rows[rows["moment"] != "official"]
    (folder / "claims.md").write_text(markdown(claims_table(rows), CLAIMS_NOTE))
    # Figures and ranks are of the last epoch too: the epochs of the lowest perplexity differ between optimizers.
    own = rows[rows["study"] == "optimizers"]
    write_analysis(pd.concat([own, own[own["epochs"] == own["epochs"].max()].assign(moment="official")]), scratch)
    copy_files(scratch, folder, ["correction.png", "scores.png", "training.png", "stable_ranks.md"])


def claims_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The claims of which `rows` have both sides, by task and on their mean; without tasks if there is one only."""
    tasks = in_order(rows["task"], TASKS)
    lines = {}
    for text, sign, one, other in claims():
        seeds = (measured(rows, one) - measured(rows, other)).unstack("task")
        seeds["mean of the tasks"] = seeds.mean(axis=1)
        seeds = seeds.loc[:, seeds.count() > 1]
        if not seeds.empty:
            means = seeds.mean()
            halves = seeds.apply(lambda own: half_width(error_of_mean(own.dropna().tolist())))
            signs = np.sign(means).where(means.abs() > halves, 0).astype(int)
            found = signs["mean of the tasks"]
            verdict = ("open", "holds", "contrary")[found * sign] if sign else ("none found", "differs")[abs(found)]
            lines[text] = {name: f"{means[name]:+.3g} ± {halves[name]:.2g}" for name in seeds}
            lines[text]["verdict"] = "mixed" if {-1, 1} <= set(signs) else verdict
    columns = [*tasks, "mean of the tasks"] if len(tasks) > 1 else ["mean of the tasks"]
    table = pd.DataFrame.from_dict(lines, "index", columns=[*columns, "verdict"]).rename_axis("claim of the paper")
    return table if len(tasks) > 1 else table.rename(columns={"mean of the tasks": "difference"})


def measured(rows: pd.DataFrame, one: Measured) -> pd.Series:
    """The measure of each run, by task and seed."""
    one = one._replace(layer=rows["layer"].max()) if one.layer == LAST else one
    for key, value in one._asdict().items():
        rows = rows[rows[key] == value] if value is not None else rows
    return rows.groupby(["task", "seed"])["mean"].mean()
