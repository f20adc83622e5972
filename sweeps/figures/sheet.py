"""The sheet that figures are drawn on: as wide as a paper wants it, as high as its panels need.

Matplotlib's constrained layout makes room for every text. Sizes are in inches, of texts in points.
"""

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.textpath import text_to_path

from mixerlab.records.atomic import replace_file

WIDTH = 6.75  # two columns of ICML
NARROWEST, WIDEST = 3.0, 20.0
FORMATS = ("png", "pdf", "svg")
DOTS_PER_INCH = 160  # of a PNG
TITLE, PANEL_TITLE, LABEL, TICK = 8.0, 7.0, 6.5, 6.0
TALLEST = 8.5  # a page of 9 without a caption
LOWEST_PANEL, BETWEEN = 0.5, 0.1

_FIRST_HEIGHT = 40.0  # constrained layout gives up on a figure that is too low, and never on this one
_LONGEST_LINE, _MOST_LINES = 44, 6  # of a label in the legend: characters, and lines
_STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # `$` in a name is a dollar, and no formula that may be malformed
    "font.size": LABEL,
    "text.hinting": "none",  # texts are as wide in every format
    "axes.edgecolor": "0.4",
    "axes.linewidth": 0.6,
    "axes.titlesize": PANEL_TITLE,
    "axes.titlepad": 3,
    "axes.labelpad": 2,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "xtick.labelsize": TICK,
    "ytick.labelsize": TICK,
    "xtick.major.size": 2,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
    "lines.linewidth": 1.1,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
}


def check_width(width: float | None) -> None:
    """`ValueError` for a width that no figure can have."""
    if width is not None and not NARROWEST <= width <= WIDEST:
        raise ValueError(f"a figure cannot be {width:g} inches wide: give {NARROWEST:g} to {WIDEST:g}, such as 5.5")


def figure_style() -> AbstractContextManager:
    """The style of all figures, also while they are saved: ticks and their labels are made then."""
    return matplotlib.rc_context(_STYLE)


class Sheet:
    """A grid of panels of one size; `finish` adds heading and legend, and gives the figure its height.

    Args:
        width: in a paper; the sheet has no heading. None: `WIDTH`, with a heading.
        titles: of its panels.
        narrowest, widest: of a panel; a grid that is narrower than the sheet stands in its middle.
        beside: what the labels beside the panels take.
        sharey: whether the panels have a vertical axis in common.
    """

    def __init__(
        self,
        width: float | None,
        titles: Sequence[str],
        narrowest: float = 1.0,
        widest: float = 2.6,
        beside: float = 0.4,
        sharey: bool = True,
    ) -> None:
        words = [text_width(word, PANEL_TITLE) for title in titles for word in title.split()]
        count, least = len(titles), max([narrowest, *words]) + BETWEEN
        self.bare, width = width is not None, width or WIDTH
        self.rows = -(-count // max(1, int((width - beside) / least)))
        self.sheet_width, self.columns = width, -(-count // self.rows)
        self.width = min(width, beside + self.columns * (widest + BETWEEN))
        self.panel_width = (self.width - beside) / self.columns - BETWEEN
        with figure_style():
            self.engine = ConstrainedLayoutEngine(h_pad=0.03, w_pad=0.03, hspace=0, wspace=0)
            self.figure = Figure((width, _FIRST_HEIGHT), DOTS_PER_INCH, layout=self.engine)
            grid = self.figure.subplots(self.rows, self.columns, squeeze=False, sharey=sharey)
            self.panels: list[Axes] = list(grid.flat)
            for unused in self.panels[count:]:
                unused.remove()
            del self.panels[count:]
            for panel, title in zip(self.panels, titles, strict=True):
                panel.set_title(_wrapped(title, self.panel_width, PANEL_TITLE))

    def finish(self, title: str, caption: str, handles: Sequence[Artist], height: float, whole: bool = False) -> Figure:
        """The figure with all its parts in place; it has title and caption as its label, also if it is bare.

        A panel has this height, or less where the figure would be higher than a page, unless it is to be kept `whole`.
        """
        self.figure.set_label(f"{title}: {caption}" if caption else title)
        for panel in self.panels:
            panel.set_xlabel(_wrapped(panel.get_xlabel(), self.panel_width, LABEL))
            for artist in (*panel.lines, *panel.collections, *panel.patches, *panel.texts):
                artist.set_in_layout(False)  # inside the panel, or just above it
        with figure_style():
            if handles:
                self._add_legend(handles)
            room = self.sheet_width - 0.2
            heading = _wrapped(title, room, TITLE), _wrapped(caption, room, LABEL)
            below = 0.04 + _height(heading[0], TITLE)
            top = 0.02 if self.bare else below + _height(heading[1], LABEL)
            self._arrange(_FIRST_HEIGHT, top)
            around = _FIRST_HEIGHT * (1 - self.rows * self.panels[0].get_position().height)
            if not whole:
                height = min(height, max(LOWEST_PANEL, (TALLEST - around) / self.rows))
            total = around + self.rows * height
            self._arrange(total, top)
            if not self.bare:
                self.figure.text(0.5, 1 - 0.04 / total, heading[0], ha="center", va="top", fontsize=TITLE)
                self.figure.text(0.5, 1 - below / total, heading[1], ha="center", va="top", color="0.35")
            self.figure.set_layout_engine("none")
        return self.figure

    def _arrange(self, total: float, top: float) -> None:
        """Runs the layout for a height, twice in all: ticks, and with them their labels, depend on its outcome."""
        self.figure.set_size_inches(self.sheet_width, total)
        share = self.width / self.sheet_width
        self.engine.set(rect=((1 - share) / 2, 0, share, 1 - top / total))
        self.engine.execute(self.figure)

    def _add_legend(self, handles: Sequence[Artist]) -> None:
        """A legend below the panels, in as many columns as fit."""
        for handle in handles:
            handle.set_label(fill(str(handle.get_label()), _LONGEST_LINE, max_lines=_MOST_LINES))
        for columns in range(len(handles), 0, -1):
            legend = self.figure.legend(
                handles=handles, loc="outside lower center", ncols=columns, frameon=False, handlelength=1.8,
                handletextpad=0.5, columnspacing=1.2, labelspacing=0.35, borderpad=0.1, borderaxespad=0.2,
            )  # fmt: skip
            if columns == 1 or legend.get_window_extent().width <= self.figure.bbox.width:
                return
            legend.remove()


def _wrapped(text: str, inches: float, points: float) -> str:
    """The text in lines that are no wider, unless 8 characters are."""
    lines, characters = text, int(0.97 * len(text) * inches / max(text_width(text, points), inches))
    while characters >= 8 and max(text_width(line, points) for line in lines.split("\n")) > inches:
        lines = fill(text, characters, break_on_hyphens=False)
        characters -= 1
    return lines


def _height(text: str, points: float) -> float:
    return (text.count("\n") + 1) * 1.25 * points / 72 if text else 0.0


def text_width(text: str, points: float) -> float:
    """How wide a text of one line is, in inches."""
    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=points), ismath=False)
    return width / 72


def save(figure: Figure, stem: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Writes `stem`.png and so on, each whole or not at all."""
    paths = [stem.with_name(f"{stem.name}.{name}") for name in formats]  # a stem may have dots
    with figure_style():
        for path in paths:
            drawn = io.BytesIO()
            if path.suffix == ".png":
                FigureCanvasAgg(figure).print_png(drawn)  # `savefig` would draw it twice
            else:
                figure.savefig(drawn, format=path.suffix[1:])
            replace_file(path, drawn.getvalue())
    return paths
