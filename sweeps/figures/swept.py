"""Scores against what was swept, learning rates or any other key, and against the sizes that come of it."""

import pandas as pd
from matplotlib.figure import Figure

from mixerlab.records.names import AVERAGE, averaged, natural
from mixerlab.sweeps.figures.axis import Panel, draw_panels
from mixerlab.sweeps.figures.marks import CHECKPOINT
from mixerlab.sweeps.figures.scores import Scores
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.tables.cells import CELL, without_repeats
from mixerlab.sweeps.tables.columns import Column, keys_of, short_names
from mixerlab.sweeps.tables.tables import Entry, mean_of, seeds_entry

SIZES = {"state_size": "state size (elements)", "num_params": "parameters"}


def score_by_key(scores: Scores, key: str) -> Figure | None:
    """The mean score of each task against one of the swept keys: a line for each column without this key.

    Values that are no numbers have no order, and no line joins their points. None if no line has two values.
    """
    lines: dict[Column, dict[str, Column]] = {}
    for column in scores.look:
        if (text := dict(column.values).get(key)) is not None:
            lines.setdefault(column.without([key]), {})[text] = column
    lines = {line: columns for line, columns in lines.items() if len(columns) > 1}
    texts = sorted({text for columns in lines.values() for text in columns}, key=natural)
    try:
        places, names = {text: float(text) for text in texts}, []
    except ValueError:
        places, names = {text: float(place) for place, text in enumerate(texts)}, texts
    short = short_names(keys_of(scores.look))[key]
    panels = []
    for task, row in scores.by_task.items() if lines else ():
        points = {line: {places[text]: row[column] for text, column in own.items()} for line, own in lines.items()}
        panels.append(Panel(task, short, pd.DataFrame(points), scores.chances[task], names))
    return draw_panels(scores, panels, f"by {short}", look=styles(lines, among=scores.look), joined=not names)


def learning_rates(scores: Scores) -> Figure | None:
    """The score by learning rate for each task, averaged over its settings; None with one learning rate, or no score.

    Of each cell the configuration of its best entry. Hollow is a mean that misses settings, or seeds that a setting has
    at any rate. Rates that only some settings of a column were run at are left out: where a grid was widened for single
    settings, their mean says which settings these are.
    """
    if scores.frame["lr"].nunique() < 2 or not scores.cells["n"].any():
        return None
    tried = scores.cells[[*CELL, "setting_name"]].join(_at_rates(scores).unstack("lr"), on=CELL)
    panels, left_out = [], False
    for task, of_task in tried.groupby("task", sort=False):
        points = {}
        for column, own in of_task.groupby("column", sort=False):
            entries = own.set_index("setting_name").drop(columns=CELL).dropna(axis=1, how="all")
            counts = entries.count()
            shared = entries.loc[:, counts == counts.max()]
            left_out |= len(shared.columns) < len(entries.columns)
            if len(shared.columns):
                entries = shared.map(lambda entry: entry if pd.notna(entry) else seeds_entry({}))
                points[column] = entries.groupby(level=0).agg(mean_of).agg(mean_of)
        if points:
            panels.append(Panel(task, "learning rate", pd.DataFrame(points), scores.chances[task], log=True))
    over = "mean over the settings of each task" + (", without rates that only some have" if left_out else "")
    return draw_panels(scores, panels, "by learning rate", over, chosen=CHECKPOINT)


def _at_rates(scores: Scores) -> pd.Series:
    """The entry of each cell, in the configuration of its best one, at each rate that was tried.

    Whole only with all seeds of the cell: the mean over those that did not diverge is higher by luck.
    """
    best = scores.cells.loc[scores.cells["n"] > 0, [*CELL, "config"]]
    rows = without_repeats(scores.frame).merge(best, "left", CELL, suffixes=("", "_best"))
    rows = rows[rows["config"] == rows["config_best"].fillna(rows["config"])]
    rows = rows.assign(
        score=rows[f"{scores.selection}_{scores.score.name}"].where(rows["status"] == "finished"),
        seeds=rows.groupby(CELL)["seed"].transform("nunique"),
    )

    def entry(own: pd.DataFrame) -> Entry:
        scored = own.dropna(subset="score").set_index("seed")["score"].to_dict()
        return seeds_entry(scored, whole=len(scored) == own["seeds"].iloc[0])

    return rows.groupby([*CELL, "lr"]).apply(entry)


def score_by_size(scores: Scores) -> Figure | None:
    """The score by state size on each task, and by parameters on the mean over tasks or, where there is none, on each.

    A size is the mean over the settings that have a score. None if fewer than two columns have one.
    """
    scored = scores.cells[scores.cells["n"] > 0]
    if scored["column"].nunique() < 2:
        return None
    panels, means = [], [AVERAGE] if AVERAGE in scores.by_task else scores.tasks
    for task, size in [*((task, "state_size") for task in scores.by_task), *((task, "num_params") for task in means)]:
        over = averaged(scores.tasks) if task == AVERAGE else [task]
        sizes = scored[scored["task"].isin(over)].groupby(["column", "task"])[size].mean().groupby("column").mean()
        points = {column: {at: scores.by_task[task][column]} for column, at in sizes.items()}
        panels.append(Panel(task, SIZES[size], pd.DataFrame(points), scores.chances[task], log=True))
    return draw_panels(scores, panels, "by size", "sizes are means over settings", joined=False)
