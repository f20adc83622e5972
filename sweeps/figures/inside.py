"""The Parallax paper's figures of what trained mixers compute, from the rows of `mixerlab analyse`.

The rows have `task`, `setting`, `mixer`, `variant`, `run_id`, `replica`, `moment` (whose weights: `official`, or those
of a snapshot), `epochs` (made until then) and, of a text, `tokens`, `layer`, `measure`, its `mean` and `QUANTILES`.
`variant` tells the runs of a mixer apart, such as by their optimizer, and has a colour.
"""

from collections.abc import Mapping, Sequence
from itertools import product
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
    look = _colours(trained, frame)
    with figure_style():
        sheet, drawn = _panels(trained, panels)
        for panel, setting, measures, own in drawn:
            for (mixer, variant, measure), line in own.groupby([*_RUN, "measure"], sort=False):
                place = (list(look).index((mixer, variant)) + 0.5) / len(look) - 0.5
                at, colour = line["layer"] + _DODGE * place, look[mixer, variant]
                style = _line(trained, look, mixer, measure)
                panel.plot(at, line["mean"], color=colour, linestyle=style, marker=_mark(line))
                panel.plot(at, line[list(QUANTILES)], color=colour, **_DOT)
            for _, line in _only(initial, setting, measures).groupby(["mixer", "measure"]):
                mean = line.groupby("layer")["mean"].mean()
                panel.plot(mean.index, mean, marker=_mark(mean), **_INITIAL)
            if "min s" in measures:
                panel.set_yscale("symlog", linthresh=1)
                panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
            panel.set(xlim=(0.6, own["layer"].max() + 0.4), xlabel="layer")
        handles = _handles(trained, look)
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
    look, layers = _colours(means, frame), means["layer"].max()
    with figure_style():
        sheet, drawn = _panels(means, panels)
        for panel, setting, _, own in drawn:
            for (mixer, variant, measure, layer), line in own.groupby([*_RUN, "measure", "layer"]):
                draw: dict[str, Any] = {"color": look[mixer, variant], "linestyle": _line(means, look, mixer, measure)}
                draw |= {"alpha": 0.35 + 0.65 * layer / layers, "marker": _mark(line)}
                panel.plot(line["trained"], line["mean"], **draw)
            show_epochs(panel, tokens=setting[0] in of_text)
        return sheet.finish(title, f"from pale to strong: layer 1 to {layers}", _handles(means, look), height=0.9)


def score_maps(maps: Mapping[tuple[str, str, str], Sequence[tuple[str, np.ndarray]]], title: str) -> Figure:
    """The weights of the values in one sequence, queries down and keys to the right.

    Args:
        maps: by mixer, variant and kind (p or s) the panels of a row: name and weights `[T, T]`.
        title: of the figure.
    """
    rows = sorted(maps, key=lambda row: (*map(_place, row[:2]), row[2]))
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
    return means.sort_values(_RUN, key=lambda names: names.map(_place), kind="stable")


def _place(name: str) -> tuple:
    """Of a mixer or variant in an order."""
    return rank(name, MIXERS)


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


def _colours(means: pd.DataFrame, frame: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Of each run that is drawn, by its variant or, where all have one, by its mixer; the same in each figure."""
    drawn, runs = ([*rows[_RUN].drop_duplicates().itertuples(index=False, name=None)] for rows in (means, frame))
    several = frame["variant"].nunique() > 1
    columns = {run: Column("", (("variant", run[1]),)) if several else Column(run[0]) for run in runs}
    look = styles(columns.values())
    return {run: look[columns[run]].colour for run in drawn}


def _is_shared(look: Mapping[tuple[str, str], str]) -> bool:
    """Whether a colour stands for a variant of several mixers, which lines then tell apart."""
    return len(set(look.values())) < len(look)


def _line(means: pd.DataFrame, look: Mapping[tuple[str, str], str], mixer: str, measure: str) -> Any:
    """Dashed for the p of a mixer with a probe; mixers that share colours have others each, solid for one with it."""
    with_probe = set(means.loc[means["measure"].isin(["cor", "sink s"]), "mixer"])
    if measure == "sink p" and mixer in with_probe:
        return "--"
    mixers = sorted(means["mixer"].unique(), key=lambda name: name not in with_probe)
    return _LINES[mixers.index(mixer) % len(_LINES)] if _is_shared(look) else "-"


def _mark(line: pd.DataFrame | pd.Series) -> str:
    """Of a line of one point, as a hybrid's single attention layer has it."""
    return "_" if len(line) == 1 else ""


def _handles(means: pd.DataFrame, look: Mapping[tuple[str, str], str]) -> list[Artist]:
    shared = _is_shared(look)
    names = [variant or mixer if shared else ", ".join(filter(None, (mixer, variant))) for mixer, variant in look]
    colours = dict(zip(names, look.values(), strict=True))
    handles: list[Artist] = [Line2D([], [], color=colour, label=name) for name, colour in colours.items()]
    kinds: dict[Any, list[str]] = {}
    for mixer in means["mixer"].unique():
        for measure in ("", "sink p") if "sink p" in set(means["measure"]) else ("",):
            line = _line(means, look, mixer, measure)
            if (shared or line == "--") and mixer not in kinds.setdefault(line, []):
                kinds[line].append(mixer)
    for line, mixers in kinds.items():
        name = ", ".join([*mixers, "p"] if line == "--" else mixers)
        handles.append(Line2D([], [], color="0.3", linestyle=line, label=name))
    return handles
