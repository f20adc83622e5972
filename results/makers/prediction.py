"""Whether MAD's accuracies predict the bits per byte of language models with the same mixers, both trained with Muon.

Scores and statistic were written before the runs of results/map; that scores are rounded, rates chosen on validation,
and the mixers of bare uniform weights left out, after them.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from makers.common import MUON_RATES, PLACE, RECORDS, best_of_seeds, rows_in, write_in_page
from makers.map import BARE, NEGATIVE, map_rows
from makers.text import BITS, at_better_rate, plain_runs
from matplotlib.figure import Figure

from mixerlab.records.names import place_rank
from mixerlab.sweeps.figures.difficulty import setting_title
from mixerlab.sweeps.figures.sheet import Sheet, figure_style, save

DRAWS = 2000
SIDES = ["all mixers", "without bare uniform weights"]
UNIFORM = ("value_average", "linear", "affine_linear")


def make(folder: Path, scratch: Path) -> None:
    rows = map_rows()
    # The language models have no negative eigenvalues, and MesaNet as it is.
    other = rows["mixer"].str.endswith((BARE, NEGATIVE))
    accuracy = best_of_seeds(rows[(rows["optimizer"] == "muon") & ~other], MUON_RATES, "clean")["accuracy"]
    models = plain_runs(rows_in("text", RECORDS))
    models = at_better_rate(models[models["optimizer"] == "muon"])
    bits = {mixer: own.to_numpy() for mixer, own in models.groupby("mixer")[BITS]}
    cells = accuracy.unstack(PLACE)  # a line for each mixer and seed
    cells = cells[cells.index.isin(bits, level="mixer")].dropna(axis=1)
    mixers = list(cells.index.unique("mixer"))
    scores = {"mean of the baselines": cells.xs("baseline", axis=1, level="setting").mean(axis=1)}
    scores |= {setting_title(*place): cells[place] for place in sorted(cells, key=place_rank)}
    strong = [mixer for mixer in mixers if mixer not in UNIFORM]
    table = pd.DataFrame(index=pd.Index(scores, name="score"))
    for side, of in zip(SIDES, (mixers, strong), strict=True):
        theirs = [bits[mixer] for mixer in of]
        table[side] = [correlation([score[mixer].to_numpy() for mixer in of], theirs) for score in scores.values()]
    write_in_page(folder, "correlations", table)
    means = scores["mean of the baselines"].groupby("mixer").mean()
    found = pd.DataFrame({"accuracy": means, "bits": models.groupby("mixer")[BITS].mean()}).loc[mixers]
    save(scatter(found, strong), folder / "prediction")


def correlation(scores: list[np.ndarray], bits: list[np.ndarray]) -> str:
    """Of the means over seeds, with its interval; both have an array of seeds for each mixer.

    Without an interval if some draw has no correlation: to leave such draws out would make it too narrow.
    """
    found = ranked([own.mean() for own in scores], [own.mean() for own in bits])
    if np.isnan(found):
        return "all alike"
    rng, count = np.random.default_rng(0), len(scores)
    draws = []
    for _ in range(DRAWS):
        chosen = rng.integers(count, size=count)
        drawn = [[rng.choice(side[mixer], len(side[mixer])).mean() for mixer in chosen] for side in (scores, bits)]
        draws.append(ranked(*drawn))
    if np.isnan(draws).any():
        return f"{found:+.2f}"
    low, high = np.quantile(draws, [0.025, 0.975])
    return f"{found:+.2f} ({low:+.2f} to {high:+.2f})"


def ranked(scores: list[float], bits: list[float]) -> float:
    """NaN if all are equal."""
    one, other = pd.Series(scores).round(3).rank(), pd.Series(bits).rank(ascending=False)
    return one.corr(other) if one.nunique() > 1 and other.nunique() > 1 else np.nan


def scatter(found: pd.DataFrame, strong: list[str]) -> Figure:
    """All mixers, and the `strong` ones by themselves."""
    with figure_style():
        sheet = Sheet(None, SIDES, widest=3.2, sharey=False)
        for panel, named in zip(sheet.panels, (found.index.difference(strong), strong), strict=True):
            shown = found if panel is sheet.panels[0] else found.loc[strong]
            panel.plot(shown["accuracy"], shown["bits"], "o", color="#0072B2", markersize=3)
            for mixer in named:
                panel.annotate(mixer, found.loc[mixer], xytext=(3, 2), textcoords="offset points", fontsize=6)
            panel.margins(x=0.15, y=0.08)
            panel.set_xlabel("accuracy, mean of the six baselines")
        sheet.panels[0].set_ylabel("bits per byte on test")
        return sheet.finish("Does MAD predict language models?", "Muon; means over seeds", [], 2.6)
