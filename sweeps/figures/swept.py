"""Scores against what was swept, learning rates or any other key, and against the sizes that come of it."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from statistics import fmean

from matplotlib.figure import Figure

from mixerlab.records.names import AVERAGE, averaged, natural
from mixerlab.sweeps.figures.axis import Panel, draw_panels
from mixerlab.sweeps.figures.marks import CHECKPOINT
from mixerlab.sweeps.figures.scores import Scores
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.tables.cells import without_repeats
from mixerlab.sweeps.tables.columns import Column, keys_of, short_names
from mixerlab.sweeps.tables.tables import Entry, mean_over, seeds_entry

Cell = tuple[Column, str, str]  # column, task, setting
Rates = dict[float, dict[int, float | None]]  # of a cell: its scores by learning rate and seed, None where it has none
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
        panels.append(Panel(task, short, points, scores.chances[task], names))
    return draw_panels(scores, panels, f"by {short}", look=styles(lines, among=scores.look), joined=not names)


def learning_rates(scores: Scores) -> Figure | None:
    """The score by learning rate for each task, averaged over its settings; None with one learning rate, or no score.

    Of each cell the configuration of its best entry. Hollow is a mean that misses settings, or seeds that a setting has
    at any rate. Rates that only some settings of a column were run at are left out: where a grid was widened for single
    settings, their mean says which settings these are.
    """
    if scores.frame["lr"].nunique() < 2 or not scores.cells["n"].any():
        return None
    tried = _tried(scores)
    panels, left_out = [], False
    for task in scores.tasks:
        cells = scores.cells_on(task)
        names = dict(zip(cells["setting"], cells["setting_name"], strict=True))
        points: dict[Column, dict[float, Entry]] = {}
        for column in scores.look:
            own = {setting: tried.get((column, task, setting), {}) for setting in names}
            times = Counter(rate for rates in own.values() for rate in rates)
            shared = [rate for rate, count in times.items() if count == max(times.values())]
            left_out |= len(shared) < len(times)
            if shared:
                points[column] = {
                    rate: mean_over((names[setting], _at_rate(rates, rate)) for setting, rates in own.items())
                    for rate in shared
                }
        if points:
            panels.append(Panel(task, "learning rate", points, scores.chances[task], log=True))
    over = "mean over the settings of each task" + (", without rates that only some have" if left_out else "")
    return draw_panels(scores, panels, "by learning rate", over, chosen=CHECKPOINT)


def _tried(scores: Scores) -> Mapping[Cell, Rates]:
    """What each cell was run at, in the configuration of its best entry."""
    configs = {(cell.column, cell.task, cell.setting): cell.config for cell in scores.cells.itertuples() if cell.n}
    found = defaultdict[Cell, Rates](lambda: defaultdict(dict))
    columns = ["column", "task", "setting", "config", "lr", "seed", "status", f"{scores.selection}_{scores.score.name}"]
    rows = without_repeats(scores.frame)[columns]
    for column, task, setting, config, rate, seed, status, value in rows.itertuples(index=False):
        cell = column, task, setting
        if configs.get(cell, config) == config:
            found[cell][rate][seed] = value if status == "finished" else None
    return found


def _at_rate(rates: Rates, rate: float) -> Entry:
    """Whole only with all seeds of the setting: the mean over those that did not diverge is higher by luck."""
    seeds = {seed for scores in rates.values() for seed in scores}
    scored = {seed: value for seed, value in rates.get(rate, {}).items() if value is not None}
    return seeds_entry(scored, whole=len(scored) == len(seeds))


def score_by_size(scores: Scores) -> Figure | None:
    """The score by state size on each task, and by parameters on the mean over tasks or, where there is none, on each.

    A size is the mean over the settings that have a score. None if fewer than two columns have one.
    """
    scored = scores.cells[scores.cells["n"] > 0]
    if scored["column"].nunique() < 2:
        return None
    panels, means = [], [AVERAGE] if AVERAGE in scores.by_task else scores.tasks
    for task, size in [*((task, "state_size") for task in scores.by_task), *((task, "num_params") for task in means)]:
        by_task = defaultdict[Column, dict[str, list[float]]](lambda: defaultdict(list))
        over = averaged(scores.tasks) if task == AVERAGE else [task]
        for cell in scored[scored["task"].isin(over)].itertuples():
            by_task[cell.column][cell.task].append(getattr(cell, size))
        sizes = {column: fmean(map(fmean, own.values())) for column, own in by_task.items()}
        points = {column: {sizes[column]: scores.by_task[task][column]} for column in sizes}
        panels.append(Panel(task, SIZES[size], points, scores.chances[task], log=True))
    return draw_panels(scores, panels, "by size", "sizes are means over settings", joined=False)
