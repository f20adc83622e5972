"""What single ingredients of a recipe change on each task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import pandas as pd
from makers import common
from makers.arms import ARM, LONG
from makers.common import at_best, rows_in
from makers.screen import effects
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mixerlab.records.names import MIXERS, TASKS, in_order
from mixerlab.sweeps.figures.by_task import named_sheet
from mixerlab.sweeps.figures.comparison import BAND
from mixerlab.sweeps.figures.sheet import figure_style, save
from mixerlab.sweeps.tables.intervals import error_of_mean, half_width
from mixerlab.sweeps.tables.published import numbers_of, ranges, read_published

EFFECT: dict = {"color": "#0072B2", "markersize": 3.5, "ecolor": "0.15", "elinewidth": 0.8}
LIMIT = 0.4  # of the axis


def make(folder: Path, scratch: Path) -> None:
    tasks = [task for task in TASKS if task in common.PAPER.over]
    lines, found = {}, {}
    for ingredient, change in ingredient_changes().items():
        mixers = in_order(change.index.unique("mixer"), MIXERS)
        unit = "mixer" if len(mixers) > 2 else "seed"
        effects_on = {task: by_unit(own, unit) for task, own in change.groupby("task")}
        seeds = change.groupby(common.CELL).size()
        lines[ingredient] = {task: common.mean_change(effects_on.get(task, ())) for task in tasks} | {
            "mixers": ", ".join(mixers),
            "settings": str(seeds.groupby(common.PLACE).ngroups),
            "seeds": " to ".join(map(str, sorted({seeds.min(), seeds.max()}))),
            "interval over": f"{unit}s" if any(len(own) > 1 for own in effects_on.values()) else "",
        }
        found[ingredient[0]] = effects_on
    spread = published_spread()
    lines["half the published range", ""] = spread.map("{:.3f}".format).to_dict()
    table = pd.DataFrame.from_dict(lines, "index").rename_axis(["ingredient", "in place of"])
    common.write_in_page(folder, "effects", table)
    save(effects_figure(found, spread, tasks), folder / "effects")


def published_spread() -> pd.Series:
    """By task half the range of what three or more published tables have, mean over mixers."""
    known = ranges(numbers_of(read_published())).xs("", level="setting")
    known = known[known["count"] > 2]
    return ((known["high"] - known["low"]) / 2).groupby("task").mean()


def effects_figure(
    found: Mapping[str, Mapping[str, Sequence[float]]], spread: pd.Series, tasks: Sequence[str]
) -> Figure:
    """A panel for each task: the effects by ingredient, over how far published tables are from their middle."""
    with figure_style():
        sheet = named_sheet(None, tasks, list(found), 0.7, 1.6)
        for panel, task in zip(sheet.panels, tasks, strict=True):
            panel.axvspan(-spread[task], spread[task], color=BAND, linewidth=0)
            panel.axvline(0, color="0.5", linewidth=0.6)
            for y, effects_on in enumerate(found.values()):
                if task in effects_on:
                    own = effects_on[task]
                    half = half_width(error_of_mean(own))
                    inside = None if len(own) > 1 else "white"
                    panel.errorbar(fmean(own), y, xerr=half, fmt="o", markerfacecolor=inside, **EFFECT)
                    for sign, head in ((-1, "<"), (1, ">")):
                        if sign * fmean(own) + half > LIMIT:
                            panel.plot(sign * LIMIT, y, head, color=EFFECT["ecolor"], markersize=3, clip_on=False)
            panel.set(xlim=(-LIMIT, LIMIT), xticks=(-0.3, 0, 0.3), xlabel="change")
        told = (
            "accuracy, mean over mixers; whiskers: 95% Student t interval over mixers or seeds, arrow heads where it"
            " goes on; hollow: one seed"
        )
        handles = [Patch(facecolor=BAND, label="half the range of three or more published tables, mean over mixers")]
        return sheet.finish("What single ingredients change", told, handles, 0.16 * len(found), whole=True)


def ingredient_changes() -> dict[tuple[str, str], pd.Series]:
    """The change of accuracy by mixer, task, setting and seed, by ingredient and what it stands in place of."""
    table = rows_in("table", common.EARLIER)
    default = at_best(table)
    copying = default.xs("sc", level="task", drop_level=False)
    longer = copying[copying.index.get_level_values("setting").str.startswith("num_tokens_to_copy")]
    of_16 = copying.xs("baseline", level="setting").groupby("mixer").mean()
    screen = rows_in("screen")
    recipes = {key: at_best(rows) - default for key, rows in screen.groupby(["study", "recipe"])}
    factorial = screen[(screen["study"] == "factorial") & (screen["status"] == "finished")]
    factorial = factorial[factorial["mixer"] != "mamba"]  # which has no heads
    by_seed = {seed: effects(rows)["effect_B"] for seed, rows in factorial.groupby("seed")}
    arms = rows_in("arms")
    arms = arms[~arms["setting"].isin(LONG)]  # which have fewer seeds
    zero_and_rotated = {key: at_best(rows) for key, rows in arms.groupby(ARM)}
    today = at_best(rows_in("table", "rows.csv"), common.MUON_RATES)
    own = rows_in("ingredients").groupby(["epochs", "batch_size", "mixer.num_heads"])
    own_changes = {key: at_best(rows, common.MUON_RATES) - today for key, rows in own}
    changes = {
        ("checkpoint and rate by validation", "by test"): at_best(table, selection="clean") - default,
        ("last epoch", "best checkpoint"): at_best(table.assign(official_accuracy=table["test_accuracy"])) - default,
        ("one rate a task for all mixers", "best rate"): common.at_rate_of_task(table, "official_accuracy") - default,
        ("sc always copies 16 tokens", "16 to 96"): of_16.sub(longer, level="mixer").reindex(
            copying.index, fill_value=0
        ),
        ("AdamW", "Muon"): at_best(rows_in("adamw", common.RECORDS), common.ADAMW_RATES) - default,
        ("200 epochs", "60"): own_changes[200, 128, 2],
        ("batch of 32", "128"): own_changes[60, 32, 2],
        ("batch of 512", "128"): own_changes[60, 512, 2],
        ("1 head of 128", "2 of 64"): recipes["one choice changed", "1x128"],
        ("4 heads of 32", "2 of 64"): recipes["finalists", "4x32"],
        ("8 heads of 16", "2 of 64"): own_changes[60, 128, 8],
        ("16 heads of 8, over 16 recipes", "2 of 64"): pd.concat(by_seed, names=["seed"]),
        ("no norms of q, k, rho", "norms"): recipes["finalists", "plain"].drop("mamba"),
        ("PyTorch's initial values", "N(0, 0.02)"): recipes["finalists", "PyTorch's init"],
        ("rho rotated", "not rotated"): zero_and_rotated[True, True] - zero_and_rotated[True, False],
        ("W_R random", "W_R zero"): zero_and_rotated[False, False] - zero_and_rotated[True, False],
    }
    return {key: change.dropna() for key, change in changes.items()}


def by_unit(change: pd.Series, unit: str) -> list[float]:
    """The mean over mixers of the means over settings of a task, in parts: by mixer, or by those seeds that all have.

    `change` is by mixer, task, setting and seed.
    """
    seeds = change.unstack("seed")
    if unit == "mixer":
        return list(seeds.mean(axis=1).groupby("mixer").mean())
    return list(seeds.dropna(axis=1).groupby("mixer").mean().mean())
