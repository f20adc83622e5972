"""The Parallax paper's figures of what trained mixers compute, from the rows of `mixerlab analyse`.

The rows have `task`, `setting`, `mixer`, `variant`, `run_id`, `replica`, `moment` (whose weights: `official`, or those
of a snapshot), `epochs` (made until then) and, of a text, `tokens`, `layer`, `measure`, its `mean` and `QUANTILES`.
`variant` tells the runs of a mixer apart, such as by their optimizer, and has a colour.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle, product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from mixerlab.records.names import MIXERS, place_rank, rank
from mixerlab.sweeps.figures.curves import show_epochs
from mixerlab.sweeps.figures.difficulty import setting_title
from mixerlab.sweeps.figures.sheet import WIDTH, Sheet, figure_style
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.tables.columns import Column

QUANTILES = ("q05", "q25", "q50", "q75", "q95")
Panels = Mapping[str, Sequence[str]]  # title, and the measures that a panel has

CORRECTION: Panels = {"COR": ["cor"], "|Corr|_F": ["corr"], "CPA": ["cpa"], "|rho|": ["norm rho"]}
SCORES: Panels = {"score range": ["min s", "max s"], "sink": ["sink p", "sink s"], "entropy (nats)": ["entropy p"]}
ACTIVATIONS: Panels = {"COR": ["cor"], "gate": ["gate"]} | {f"|{x}|": [f"norm {x}"] for x in ("q", "k", "v", "rho")}

_RUN = ["mixer", "variant"]
_INITIAL: dict[str, Any] = {"color": "0.6", "linewidth": 0.8}
_DOT: dict[str, Any] = {"marker": ".", "markersize": 2.5, "linestyle": "none", "markeredgewidth": 0, "alpha": 0.6}
_LINES = ("-", ":", "-.", (0, (3, 1, 1, 1, 1, 1)))
_DODGE = 0.5  # of the distance between layers: what the runs take at each
_SCALE = SymLogNorm(0.01, vmin=-1, vmax=1)  # of the weight of a value


def final(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of each replica's reported epoch."""
    return frame[frame["moment"] == "official"]


def by_layer(frame: pd.DataFrame, panels: Panels, title: str) -> Figure | None:
    """The measures by layer, of trained and of initial weights: a row for each task; None if there are none."""
    trained, initial = (_means(rows, panels) for rows in (final(frame), frame[frame["epochs"] == 0]))
    if trained.empty:
        return None
    with figure_style():
        trained, handles = _with_look(trained, frame)
        sheet, drawn = _panels(trained, panels)
        for panel, setting, measures, own in drawn:
            for _, line in own.groupby([*_RUN, "measure"], sort=False):
                at, first = line["layer"] + _DODGE * line["place"], line.iloc[0]
                panel.plot(at, line["mean"], color=first["colour"], linestyle=first["line"], marker=_mark(line))
                panel.plot(at, line[list(QUANTILES)], color=first["colour"], **_DOT)
            for _, line in _only(initial, setting, measures).groupby(["mixer", "measure"]):
                mean = line.groupby("layer")["mean"].mean()
                panel.plot(mean.index, mean, marker=_mark(mean), **_INITIAL)
            if "min s" in measures:
                panel.set_yscale("symlog", linthresh=1)
                panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
            panel.set(xlim=(0.6, own["layer"].max() + 0.4), xlabel="layer")
        if len(initial):
            handles.append(Line2D([], [], label="initial values", **_INITIAL))
        told = "lines: means over heads and positions; dots: their 5, 25, 50, 75 and 95 % quantiles"
        return sheet.finish(title, told, handles, height=1.1)


def over_training(frame: pd.DataFrame, panels: Panels, title: str) -> Figure | None:
    """The means by epoch, or by tokens, a line for each layer: a row for each task; None without snapshots."""
    tokens = frame.get("tokens", pd.Series(np.nan, frame.index))
    of_text = set(frame.loc[tokens.notna(), "task"])
    frame = frame.assign(trained=tokens.fillna(frame["epochs"]))
    means = _means(frame[frame["moment"] != "official"], panels, "trained")
    if means.empty:
        return None
    layers = means["layer"].max()
    with figure_style():
        means, handles = _with_look(means, frame)
        sheet, drawn = _panels(means, panels)
        for panel, setting, _, own in drawn:
            for _, line in own.groupby([*_RUN, "measure", "layer"]):
                first = line.iloc[0]
                draw: dict[str, Any] = {"color": first["colour"], "linestyle": first["line"], "marker": _mark(line)}
                panel.plot(line["trained"], line["mean"], alpha=0.35 + 0.65 * first["layer"] / layers, **draw)
            show_epochs(panel, tokens=setting[0] in of_text)
        return sheet.finish(title, f"from pale to strong: layer 1 to {layers}", handles, height=0.9)


def score_maps(maps: Mapping[tuple[str, str, str], Sequence[tuple[str, np.ndarray]]], title: str) -> Figure:
    """The weights of the values in one sequence, queries down and keys to the right.

    `maps` has by mixer, variant and kind (p or s) the panels of a row: name and weights `[T, T]`.
    """
    rows = sorted(maps, key=lambda row: (rank(row[0], MIXERS), rank(row[1], MIXERS), row[2]))
    columns = max(map(len, maps.values()))
    with figure_style():
        names = [[name for name, _ in maps[row]] + [""] * (columns - len(maps[row])) for row in rows]
        titles = [name if own != names[0] or not number else "" for number, own in enumerate(names) for name in own]
        sheet = Sheet(None, titles, narrowest=_narrowest(columns), sharey=False)
        for number, row in enumerate(rows):
            panels = sheet.panels[number * columns : (number + 1) * columns]
            for panel, (_, weights) in zip(panels, maps[row], strict=False):
                panel.imshow(weights, cmap="RdBu_r", norm=_SCALE, aspect="auto", interpolation="nearest")
                panel.grid(visible=False)
                panel.set_xlabel("key")
            panels[0].set_ylabel(f"{', '.join(filter(None, row[:2]))}\n{row[2]}: query")
            for panel in panels[len(maps[row]) :]:
                panel.set_axis_off()
        levels = (-1, -0.1, -0.01, 0, 0.01, 0.1, 1)
        handles: list[Artist] = [Patch(color=colormaps["RdBu_r"](_SCALE(x)), label=f"{x:g}") for x in levels]
        return sheet.finish(title, "what is beyond -1 and 1 as these", handles, height=sheet.panel_width, whole=True)


def _means(frame: pd.DataFrame, panels: Panels, *more: str) -> pd.DataFrame:
    """The means over replicas, by run, of the measures that the panels have."""
    frame = frame[frame["measure"].isin([measure for measures in panels.values() for measure in measures])]
    keys = ["task", "setting", *_RUN, *more, "layer", "measure"]
    means = frame.groupby(keys, sort=False)[["mean", *QUANTILES]].mean().reset_index()
    return means.sort_values(_RUN, key=lambda names: names.map(partial(rank, known=MIXERS)), kind="stable")


def _only(means: pd.DataFrame, setting: Sequence[str], measures: Sequence[str]) -> pd.DataFrame:
    task, name = setting
    return means[(means["task"] == task) & (means["setting"] == name) & means["measure"].isin(measures)]


def _panels(means: pd.DataFrame, panels: Panels) -> tuple[Sheet, list[tuple]]:
    """A sheet with a row for each task, and of panels with any of their measures these, setting, measures and rows."""
    have = {title: measures for title, measures in panels.items() if means["measure"].isin(measures).any()}
    settings = sorted(set(means[["task", "setting"]].itertuples(index=False, name=None)), key=place_rank)
    titles = [f"{setting_title(*setting)}: {title}" for setting in settings for title in have]
    sheet = Sheet(None, titles, narrowest=_narrowest(len(have)), sharey=False)
    drawn = []
    for panel, (setting, measures) in zip(sheet.panels, product(settings, have.values()), strict=True):
        if len(own := _only(means, setting, measures)):
            drawn.append((panel, setting, measures, own))
        else:
            panel.set_title("")
            panel.set_axis_off()
    return sheet, drawn


def _narrowest(columns: int) -> float:
    """The width of a panel at which so many stand side by side on a `Sheet`."""
    return (WIDTH - 0.4) / columns - 0.101


def _with_look(means: pd.DataFrame, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[Artist]]:
    """The means with the `colour` and `line` of each and the `place` of its run beside others, and their legend.

    A colour is the variant's or, where all of `frame` have one, the mixer's. Mixers that share colours have lines of
    their own, solid for one with a probe, whose p is dashed.
    """
    several = frame["variant"].nunique() > 1
    of_frame, runs = (list(dict.fromkeys(rows[_RUN].itertuples(index=False, name=None))) for rows in (frame, means))
    columns = {run: Column("", (("variant", run[1]),)) if several else Column(run[0]) for run in of_frame}
    look = styles(columns.values())
    colours = {run: look[columns[run]].colour for run in runs}
    shared = len(set(colours.values())) < len(runs)
    with_probe = set(means.loc[means["measure"].isin(["cor", "sink s"]), "mixer"])
    mixers = sorted(means["mixer"].unique(), key=lambda name: name not in with_probe)
    lines: dict[str, Any] = dict(zip(mixers, cycle(_LINES if shared else "-")))
    is_p = means["measure"] == "sink p"
    names = {(v or m) if shared else ", ".join(filter(None, (m, v))): colour for (m, v), colour in colours.items()}
    handles: list[Artist] = [Line2D([], [], color=colour, label=name) for name, colour in names.items()]
    kinds = defaultdict[Any, list[str]](list)
    for mixer in means["mixer"].unique():
        if shared:
            kinds[lines[mixer]].append(mixer)
        if is_p.any() and mixer in with_probe:
            kinds["--"].append(mixer)
    for line, own in kinds.items():
        label = ", ".join([*own, *(["p"] if line == "--" else [])])
        handles.append(Line2D([], [], color="0.3", linestyle=line, label=label))
    of_rows = list(means[_RUN].itertuples(index=False, name=None))
    return means.assign(
        colour=[colours[run] for run in of_rows],
        line=means["mixer"].map(lines).mask(is_p & means["mixer"].isin(with_probe), "--"),
        place=[(runs.index(run) + 0.5) / len(runs) - 0.5 for run in of_rows],
    ), handles


def _mark(line: pd.DataFrame | pd.Series) -> str:
    """Of a line of one point, as a hybrid's single attention layer has it."""
    return "_" if len(line) == 1 else ""
