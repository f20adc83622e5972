"""The Parallax paper's analysis and its claims."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from makers.common import copy_files

from mixerlab.analyse import write as write_analysis
from mixerlab.records.names import TASKS, in_order
from mixerlab.sweeps.tables.intervals import error_of_mean, half_width
from mixerlab.sweeps.tables.writers import markdown

CLAIMS_NOTE = """\
Differences that the claim says to be above or below 0, or none: means over three seeds ± half of Student's 95%
interval, after 60 epochs, over layers if none is named. The ± is over seeds only, also that of the mean of the tasks:
the four tasks are fixed. The verdict is by the interval of that mean: open, or none found, if it includes 0. But it is
mixed if two intervals of a line exclude 0 with opposite signs."""
MUON, ADAMW, COSINE, FIRST, LAST = "muon, wsd", "adamw, wsd", "adamw, cosine", 1, -1


class Measured(NamedTuple):
    """A measure of `mixerlab analyse`: whose, in which layer (None: the mean over layers), after how many epochs."""

    measure: str
    variant: str = MUON
    mixer: str = "parallax"
    layer: int | None = None
    epochs: int = 60
    study: str = "optimizers"


Claim = tuple[str, int, Measured, dict[str, Any]]


def claims() -> Iterator[Claim]:
    """What the paper says, which sign the difference should have (0: none), a measure, and how the other differs."""
    for name in (MUON, ADAMW, COSINE):
        last, first = Measured("cor", name, layer=LAST), Measured("cor", name, layer=FIRST)
        yield f"COR grows with depth ({name})", 1, last, {"layer": FIRST}
        change = f"{'exceeds' if name == MUON else 'barely recovers'} that of initial values"
        yield f"COR of the last layer {change} ({name})", int(name == MUON), last, {"epochs": 0}
        yield f"COR of the first layer falls from initial values ({name})", -1, first, {"epochs": 0}
    last = Measured("cor", layer=LAST)
    yield "COR of the last layer is larger with Muon than with AdamW", 1, last, {"variant": ADAMW}
    for text, measure in (("the norm of Corr", "corr"), ("CPA", "cpa"), ("the norm of rho", "norm rho")):
        yield f"{text} is larger with Muon", 1, Measured(measure), {"variant": ADAMW}
    for less in (ADAMW, COSINE):
        for rank in ("srank W_R", "srank W_RK"):
            yield f"{rank} collapses ({less})", 1, Measured(rank), {"variant": less}
    for mixer in ("attn", "parallax"):
        for rank in ("srank W_Q", "srank W_K", "srank W_QK"):
            yield f"{rank} is larger with Muon ({mixer})", 1, Measured(rank, mixer=mixer), {"variant": ADAMW}
    attention = {"mixer": "attn"}
    for name in (MUON, ADAMW, COSINE):
        for rank in ("srank W_Q", "srank W_K", "srank W_QK"):
            yield f"{rank} is that of attention ({name})", 0, Measured(rank, name), attention
        for rank in ("srank W_V", "srank W_O", "srank W_OV"):
            yield f"{rank} is above that of attention ({name})", 1, Measured(rank, name), attention
        yield f"the sink in p is weaker than in attention ({name})", -1, Measured("sink p", name), attention
        sink = Measured("sink s", name)
        yield f"the sink in s is weaker than in attention ({name})", -1, sink, attention | {"measure": "sink p"}
        yield f"the entropy of p is above attention's ({name})", 1, Measured("entropy p", name), attention
    for name, change, sign in (("muon", "opens", 1), ("adamw", "closes", -1)):
        yield f"the gate {change} ({name})", sign, Measured("gate", name, study="gate"), {"epochs": 0}
    annealed, plain = Measured("norm W_R", "", study="wda"), {"variant": MUON, "study": "optimizers"}
    yield "annealed weight decay (gamma = 2) keeps the norm of W_R", 1, annealed, plain


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
    """The claims whose sides have several seeds in `rows`, by task and on the mean; only that if there is one task."""
    tasks = in_order(rows["task"], TASKS)
    lines = {}
    for text, sign, one, other in claims():
        seeds = (measured(rows, one) - measured(rows, one._replace(**other))).unstack("task")
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
