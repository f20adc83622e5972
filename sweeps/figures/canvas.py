"""The sheet that figures are drawn on: as wide as a paper wants it, every part with room of its own.

Sizes are in inches. Panels stand in lines of equal panels; the title is above them and one legend below. Widths of
texts are measured, so that none lies over another, whatever the mixers are called and however many there are.
"""

import io
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import text_to_path
from PIL import Image

from mixerlab.records.atomic import replace_file

WIDTHS = {1: 3.25, 2: 6.75}  # of one and two columns of ICML
NARROWEST, WIDEST = 3.0, 20.0  # of a figure: in less, a line has one panel, and figures get too high
FORMATS = ("png", "pdf", "svg")
DOTS_PER_INCH = 160  # of a PNG
TITLE, SUBTITLE, PANEL_TITLE, LABEL, TICK, LEGEND = 8.0, 6.5, 7.0, 6.5, 6.0, 6.5  # points
LONGEST_LINE = 44  # characters of a label in the legend
_MOST_LINES = 12
NARROWEST_PANEL, WIDEST_PANEL = 1.15, 2.6  # inches
TALLEST = 8.5  # inches: a page of 9 without a caption
# `$` in a name is a dollar, and no formula that may be malformed.
NO_MATHTEXT: dict[Any, bool] = {"text.parse_math": False}

_GRID: dict[str, Any] = {"color": "0.9", "linewidth": 0.5, "zorder": 0.5}
_LEFT, _RIGHT, _BETWEEN, _OWN_TICKS = 0.47, 0.1, 0.13, 0.3
_TITLE_LINE, _BELOW = 0.17, 0.38  # of a panel: the line above it, and what ticks and their label take below
_LOWEST = 0.5  # inches of a panel: in less, tick labels would touch


@dataclass(frozen=True)
class Layout:
    """How wide the figures of a report are, and whether they have a heading.

    Attributes:
        width: inches, from `NARROWEST` to `WIDEST`; otherwise `ValueError`.
        bare: without title and subtitle, for a paper whose caption says what they say.
    """

    width: float = WIDTHS[2]
    bare: bool = False

    def __post_init__(self) -> None:
        if not NARROWEST <= self.width <= WIDEST:
            raise ValueError(
                f"a figure cannot be {self.width:g} inches wide: give {NARROWEST:g} to {WIDEST:g}, such as 5.5"
            )


TWO_COLUMNS, ONE_COLUMN = Layout(), Layout(WIDTHS[1])


def looks() -> AbstractContextManager:
    """The style of all figures, also while they are saved: ticks and their labels are made then."""
    return matplotlib.rc_context(
        {
            **NO_MATHTEXT,
            "font.size": LABEL,
            "text.hinting": "none",
            "axes.edgecolor": "0.4",
            "axes.linewidth": 0.6,
            "axes.titlesize": PANEL_TITLE,
            "axes.titlepad": 3,
            "axes.labelsize": LABEL,
            "axes.labelpad": 2,
            "axes.grid": True,
            "axes.grid.axis": "y",
            "axes.axisbelow": True,
            "grid.color": _GRID["color"],
            "grid.linewidth": _GRID["linewidth"],
            "xtick.labelsize": TICK,
            "ytick.labelsize": TICK,
            "xtick.major.size": 2,
            "ytick.major.size": 0,
            "xtick.major.width": 0.6,
            "xtick.major.pad": 2,
            "ytick.major.pad": 2,
            "legend.fontsize": LEGEND,
            "hatch.linewidth": 0.6,
            "lines.linewidth": 1.1,
            "pdf.fonttype": 42,  # text stays text
            "svg.fonttype": "none",
        }
    )


def text_width(text: str, points: float) -> float:
    """How many inches wide a text is."""
    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=points), ismath=False)
    return width / 72


def even_lines(panels: int, most: int) -> int:
    """How many panels a line has at most, if as few lines as possible are to be about equally long."""
    lines = -(-panels // most)
    return -(-panels // lines)


class Sheet:
    """A figure to which panels are added, and which is arranged when all is drawn.

    Args:
        layout: how wide it is, and whether it has a heading.
        widest: inches that a panel may be wide; lines of few panels stand in the middle.
    """

    def __init__(self, layout: Layout, widest: float = WIDEST_PANEL):
        self.width, self.bare = layout.width, layout.bare
        self.widest = widest
        room = self.width - _LEFT - _RIGHT + _BETWEEN
        self.most = max(1, int(room / (NARROWEST_PANEL + _BETWEEN)))  # panels that a line has
        self.figure = Figure(figsize=(self.width, 3.0))
        self.panels: list[Axes] = []

    def per_line(self, panels: int) -> int:
        """How many panels of a common size a line has."""
        return even_lines(panels, self.most)

    def panel(self, title: str = "") -> Axes:
        """A new panel; `arrange` gives it its place."""
        panel = self.figure.add_axes((0.0, 0.0, 1.0, 1.0), label=str(len(self.panels)))
        if title:
            panel.set_title(title, y=1.0)  # a fixed y skips matplotlib's automatic placement
        self.panels.append(panel)
        return panel

    def inside(self, per_line: int, left: float = _LEFT, own_ticks: bool = False) -> float:
        """How wide a panel will be."""
        gaps = (per_line - 1) * (_BETWEEN + (_OWN_TICKS if own_ticks else 0))
        return min(self.widest, (self.width - left - _RIGHT - gaps) / per_line)

    def arrange(
        self,
        title: str,
        subtitle: str = "",
        handles: Sequence[Line2D | Patch] = (),
        lines: Sequence[Sequence[Axes]] | None = None,
        per_line: int = 1,
        ylabels: Sequence[str] = ("accuracy",),
        height: float = 1.05,
        left: float = _LEFT,
        below: float = _BELOW,
        own_ticks: bool = False,
        above: float = 0.0,
        tallest: float = math.inf,
    ) -> Figure:
        """Gives every part its place.

        Args:
            title, subtitle: what the figure shows, and how it was chosen. The figure's label has both, also if it is
                bare.
            handles: of the legend.
            lines: the panels of each line; where None, all panels in their order.
            per_line: how many a line has at most.
            ylabels: of the lines in turn.
            height: of a panel.
            left, below: the room beside and below the panels for ticks and labels.
            above: more room above the panels.
            own_ticks: whether each panel has tick labels of its own; else the first of a line has those of all.
            tallest: of the figure, for which panels are made lower, down to half an inch.
        """
        if lines is None:
            lines = [self.panels[first : first + per_line] for first in range(0, len(self.panels), per_line)]
        self.figure.set_label(f"{title}: {subtitle}" if subtitle else title)
        heading = under = ""
        if not self.bare:
            heading = _filled(title, self.width, TITLE, 0.56)
            under = _filled(subtitle, self.width, SUBTITLE, 0.53)
        top = 0.08 + _lines_of(heading) * 1.2 * TITLE / 72 + _lines_of(under) * 1.25 * SUBTITLE / 72
        inside = self.inside(per_line, left, own_ticks)
        for panel in self.panels:
            panel.set_title(_broken(panel.get_title(), inside), y=1.0)
            panel.set_xlabel(_broken(panel.get_xlabel(), inside + _BETWEEN / 2, LABEL))
        title_lines = [max(_lines_of(panel.get_title()) for panel in line) for line in lines]
        label_lines = [max(_lines_of(panel.get_xlabel()) for panel in line) for line in lines]
        belows = [below + max(0, count - 1) * 1.2 * LABEL / 72 for count in label_lines]
        around = [
            under_panel + above + (0.08 if count == 0 else count * _TITLE_LINE)
            for under_panel, count in zip(belows, title_lines, strict=True)
        ]
        entries, legend_columns = self._legend_size(handles)
        if lines:
            height = min(height, max(_LOWEST, (tallest - top - sum(around) - entries) / len(lines)))
        total = top + sum(around) + len(lines) * height + entries
        self.figure.set_size_inches(self.width, total)
        across = inside + _BETWEEN + (_OWN_TICKS if own_ticks else 0)
        first = left + max(0.0, self.width - left - _RIGHT - (per_line * across - (across - inside))) / 2
        edge = total - top
        for row, line in enumerate(lines):
            edge -= height + around[row]
            floor = edge + belows[row]
            for place, panel in enumerate(line):
                start = first + place * across
                panel.set_position((start / self.width, floor / total, inside / self.width, height / total))
            _share_ticks(line, ylabels[row % len(ylabels)], own_ticks)
        if heading:
            self._write_heading(heading, under, total)
        if handles:
            self._draw_legend(handles, legend_columns, total)
        return self.figure

    def _write_heading(self, heading: str, under: str, total: float) -> None:
        """The title and, if there is one, the subtitle, of a figure that is `total` inches high."""
        self.figure.suptitle(heading, y=1 - 0.05 / total, va="top", fontsize=TITLE)
        if under:
            drop = 0.05 + _lines_of(heading) * 1.2 * TITLE / 72
            self.figure.text(0.5, 1 - drop / total, under, ha="center", va="top", fontsize=SUBTITLE, color="0.35")

    def _draw_legend(self, handles: Sequence[Line2D | Patch], columns: int, total: float) -> None:
        self.figure.legend(
            handles=handles,
            loc="lower center",
            bbox_to_anchor=(0.5, 0.02 / total),
            ncols=columns,
            frameon=False,
            handlelength=2.0,
            handletextpad=0.5,
            columnspacing=1.2,
            labelspacing=0.35,
            borderpad=0.1,
            borderaxespad=0,
        )

    def _legend_size(self, handles: Sequence[Line2D | Patch]) -> tuple[float, int]:
        """The height of the legend, and its columns."""
        if not handles:
            return 0.0, 1
        for handle in handles:
            label = str(handle.get_label())
            handle.set_label(fill(label, LONGEST_LINE, break_on_hyphens=False, max_lines=_MOST_LINES, placeholder="…"))
        widest = max(text_width(line, LEGEND) for handle in handles for line in str(handle.get_label()).split("\n"))
        entry = widest + (2.0 + 0.5 + 1.2) * LEGEND / 72
        columns = max(1, min(len(handles), int((self.width - 0.1) / entry)))
        heights = [1.4 * _lines_of(str(handle.get_label())) for handle in handles]
        tallest = max(sum(column) for column in np.array_split(heights, columns))  # as matplotlib splits them
        return tallest * LEGEND / 72 + 0.1, columns


def _share_ticks(line: Sequence[Axes], ylabel: str, own_ticks: bool) -> None:
    """The first panel of a line has the label, and its ticks are those of all unless they have their own."""
    line[0].set_ylabel(ylabel)
    for panel in () if own_ticks else line[1:]:  # lines as one object: ticks are most of what a panel costs
        panel.hlines(line[0].get_yticks(), 0, 1, transform=panel.get_yaxis_transform(), **_GRID)
        panel.yaxis.set_visible(False)


def _filled(text: str, inches: float, points: float, per_letter: float) -> str:
    """The text in lines that fit; letters are about `per_letter` of `points` wide, a line of wide ones has fewer."""
    filled = text
    for most in range(max(1, int(inches * 72 / (per_letter * points))), 0, -1):
        filled = fill(text, most, break_on_hyphens=False)
        if all(text_width(line, points) <= inches - 0.1 for line in filled.split("\n")):
            break
    return filled


def _broken(text: str, inches: float, points: float = PANEL_TITLE) -> str:
    """The title or label of a panel, in two lines if one is too short; what does not fit then is cut."""
    words, lines = text.split(" "), [""]
    for word in words:
        longer = f"{lines[-1]} {word}".lstrip()
        if len(lines) == 1 and lines[0] and text_width(longer, points) > inches:
            lines.append(word)
        else:
            lines[-1] = longer
    return "\n".join(_cut(line, inches, points) for line in lines)


def _cut(text: str, inches: float, points: float) -> str:
    while len(text) > 1 and text_width(text, points) > inches:
        text = f"{text[:-2]}…"
    return text


def _lines_of(text: str) -> int:
    return text.count("\n") + 1 if text else 0


def caption_of(figure: Figure) -> str:
    """Title and subtitle, also of a figure that is bare."""
    return str(figure.get_label())


def save(figure: Figure, stem: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Writes `stem`.png and so on, each whole or not at all."""
    paths = [stem.with_name(f"{stem.name}.{name}") for name in formats]  # a stem may have dots
    with looks():
        for path in paths:
            drawn = io.BytesIO()
            if path.suffix == ".png":
                figure.set_dpi(DOTS_PER_INCH)
                canvas = FigureCanvasAgg(figure)
                canvas.draw()  # `savefig` would draw it twice
                # Nothing is transparent; compressing as far as possible takes as long as drawing.
                picture = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB")
                picture.save(drawn, "png", compress_level=1, dpi=(DOTS_PER_INCH, DOTS_PER_INCH))
            else:
                figure.savefig(drawn, format=path.suffix[1:])
            replace_file(path, drawn.getvalue())
    return paths
