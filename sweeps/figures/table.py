"""Figures of a table: its rows as bars, and its settings as a heat map."""

from collections.abc import Mapping
from textwrap import wrap

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mixerlab.records.best import Selection
from mixerlab.records.names import BASELINE, sees_future
from mixerlab.sweeps.figures.canvas import TICK, TWO_COLUMNS, Layout, Sheet, even_lines, looks, text_width
from mixerlab.sweeps.figures.labels import shortened, told_apart, without_shared
from mixerlab.sweeps.figures.marks import (
    ACCURACY_LIMITS,
    CHANCE,
    CHANCE_LOOK,
    CHOSEN,
    CROSS_LOOK,
    FUTURE,
    Handles,
    bar_handle,
    cross_handle,
    draw_bar,
    hollow_bar_handle,
    legend_of,
    mark_intervals,
    setting_title,
    with_intervals,
)
from mixerlab.sweeps.figures.styles import Style, styles
from mixerlab.sweeps.tables.tables import Score, Table

NARROWEST_BAR = 0.058  # inches, with the gap beside it
WIDEST_BAR = 0.3
WIDEST_CELL = 0.9  # inches, of the heat map
LONGEST_COLUMN = 30  # characters above it
LONGEST_ROW, OF_WIDTH = 44, 0.54  # characters beside it, and the share of the sheet that they may take


def bars(
    table: Table,
    title: str,
    selection: Selection,
    layout: Layout = TWO_COLUMNS,
    chances: Mapping[tuple[str, ...], float] | None = None,
) -> Figure:
    """Accuracy by row of the table, a bar per mixer, with its interval over seeds (Student's, 95%) if it has several.

    A mean that misses settings or seeds is hollow; an entry without any score is a cross. With so many mixers that bars
    would be too narrow, each row has a panel of its own. `chances` gives the chance level by row.
    """
    look = styles(table.mixers)
    handles: Handles = {mixer: bar_handle(mixer, style) for mixer, style in look.items()}
    explain: Handles = {}
    with looks():
        count = len(table.mixers)
        names = ["\n".join(name) for name in table.rows]
        least = max(
            (count + 1.2) * NARROWEST_BAR,
            0.08 + max(text_width(line, TICK) for name in names for line in name.split("\n")),
        )
        sheet = Sheet(layout, widest=max(least, (count + 1.2) * WIDEST_BAR) * len(names))
        together = sheet.inside(1) / len(names) >= least
        if together:
            panel = sheet.panel()
            for place, row in enumerate(table.rows.values()):
                explain |= _group(panel, place, row, look)
            panel.set_xticks(range(len(names)), names)
            panel.set_xlim(-0.55, len(names) - 0.45)
            per_line, below = 1, 0.24 if len(table.labels) == 1 else 0.34
        else:
            per_line = next((n for n in (4, 3, 2) if sheet.inside(n) / (count + 1.2) >= NARROWEST_BAR), 1)
            per_line, below = even_lines(len(names), per_line), 0.1
            for name, row in zip(names, table.rows.values(), strict=True):
                panel = sheet.panel(name.replace("\n", " "))
                explain |= _group(panel, 0, row, look)
                panel.set_xticks([])
                panel.set_xlim(-0.55, 0.55)
        for place, row_name in enumerate(table.rows):
            level = (chances or {}).get(row_name, np.nan)
            if not np.isnan(level):
                where = sheet.panels[0 if together else place]
                middle = place if together else 0
                where.plot([middle - 0.45, middle + 0.45], [level, level], zorder=3, **CHANCE_LOOK)
                explain["chance"] = CHANCE
        for panel in sheet.panels:
            panel.set_ylim(*ACCURACY_LIMITS)
        return sheet.arrange(
            title, with_intervals(_how(table, selection), sheet.panels), legend_of(handles, explain), per_line=per_line,
            below=below, height=1.5 if together else 0.95,
        )  # fmt: skip


def _how(table: Table, selection: Selection) -> str:
    """How the scores were chosen, and that they have no spread, if no entry has a second seed."""
    seeds = {score.seeds for row in table.rows.values() for score in row.values() if score.mean is not None}
    return CHOSEN[selection] + ("; one seed" if seeds == {"1"} else "")


def _group(panel: Axes, place: float, row: Mapping[str, Score], look: Mapping[str, Style]) -> Handles:
    """The bars of one row around `place`; returns what the legend must explain."""
    explain: Handles = {}
    width = min(0.3, 0.88 / len(look))
    centres: list[tuple[float, Score]] = []
    for number, (mixer, style) in enumerate(look.items()):
        score, x = row[mixer], place + (number - (len(look) - 1) / 2) * width
        if score.mean is None:
            panel.plot(x, 0.0, color=style.colour, zorder=4, **CROSS_LOOK)
            explain["cross"] = cross_handle()
            continue
        if not score.whole:
            explain["hollow"] = hollow_bar_handle()
        draw_bar(panel, x, score.mean, 0.9 * width, style, score.whole, mixer)
        centres.append((x, score))
    mark_intervals(panel, centres, "0.15")
    return explain


def heat_map(table: Table, selection: Selection, layout: Layout = TWO_COLUMNS) -> Figure:
    """Accuracy of each setting (rows) and mixer (columns), as colours and, where they fit, as numbers."""
    names = [
        f"{task} {setting}" if setting == BASELINE else setting_title(task, setting) for task, setting in table.rows
    ]
    values = np.array(
        [
            [np.nan if row[mixer].mean is None else row[mixer].mean for mixer in table.mixers]
            for row in table.rows.values()
        ]
    )
    with looks():
        sheet = Sheet(layout, widest=WIDEST_CELL * len(table.mixers))
        panel = sheet.panel()
        longest = min(LONGEST_ROW, int(OF_WIDTH * sheet.width / (0.55 * TICK / 72)))
        labels = [_row_label(name, longest) for name in names]
        left = 0.12 + max(text_width(line, TICK) for label in labels for line in label.split("\n"))
        wide = sheet.inside(1, left)
        cell, line = wide / len(table.mixers), 0.21 if any("\n" in label for label in labels) else 0.125
        mixers, shared = list(table.mixers), ""
        if max(map(len, mixers)) > LONGEST_COLUMN:
            mixers, shared = without_shared(mixers)
            mixers = told_apart(mixers, LONGEST_COLUMN)
        widest = max(text_width(mixer, TICK) for mixer in mixers)
        upright = widest > cell - 0.04
        above = 0.08 + (widest if upright else TICK * 1.3 / 72)
        panel.pcolormesh(values, cmap="cividis", vmin=0, vmax=1, edgecolor="white", linewidth=0.4)
        for y, x in np.argwhere(np.isnan(values)):
            panel.plot(x + 0.5, y + 0.5, color="0.4", markersize=3.5, marker="x", markeredgewidth=0.8)
        if cell >= text_width("0.00", TICK - 0.5) + 0.03:
            for y, x in np.argwhere(~np.isnan(values)):
                ink = "white" if values[y, x] < 0.6 else "black"
                text = f"{values[y, x]:.2f}".replace("0.", ".") if values[y, x] < 0.995 else "1.0"
                panel.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=TICK - 0.5, color=ink)
        tasks = [name[0] for name in table.rows]
        for y in (y for y in range(1, len(tasks)) if tasks[y] != tasks[y - 1]):
            panel.axhline(y, color="white", linewidth=2.5)
        panel.invert_yaxis()
        panel.grid(visible=False)
        panel.set_yticks(np.arange(len(names)) + 0.5, labels)
        panel.xaxis.tick_top()
        panel.set_xticks(np.arange(len(mixers)) + 0.5, mixers, rotation=90 if upright else 0)
        panel.tick_params(length=0)
        for side in panel.spines.values():
            side.set_visible(False)
        handles: list[Line2D | Patch] = [
            Patch(facecolor=colormaps["cividis"](level), label=f"{level:g}") for level in (0.0, 0.25, 0.5, 0.75, 1.0)
        ]
        if np.isnan(values).any():
            handles.append(Line2D([], [], color="0.4", marker="x", linestyle="none", markersize=3.5, label="no score"))
        handles += [FUTURE] if any(map(sees_future, table.mixers)) else []
        under = _how(table, selection) + (f"; all columns: {shared}" if shared else "")
        return sheet.arrange(
            "Accuracy by setting", under, handles, height=line * len(names), left=left, below=0.08,
            ylabels=("",), above=above,
        )  # fmt: skip


def _row_label(text: str, most: int) -> str:
    """The text in one line or two; what does not fit is cut from the second."""
    if len(text) <= most:
        return text
    head, comma, tail = text.rpartition(", ")
    if comma and max(len(head) + 1, len(tail)) <= most:
        return f"{head},\n{tail}"
    first = wrap(text, most, break_on_hyphens=False)[0]
    return f"{first}\n{_with_its_end(text[len(first) :].lstrip(), most)}"


def _with_its_end(text: str, most: int) -> str:
    """The text, or its beginning and its last part if it would not fit: that is what parts it from the rows above."""
    head, comma, tail = text.rpartition(", ")
    if len(text) <= most or not comma or len(tail) > most // 2:
        return shortened(text, most)
    return f"{shortened(head, most - len(tail) - 2)}, {tail}"
