"""The sheet that figures are drawn on: as wide as a paper wants it, as high as its panels need.

Matplotlib's constrained layout makes room for every text. Sizes are in inches, of texts in points.
"""

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.textpath import text_to_path

from mixerlab.records.atomic import replace_file

WIDTHS = {1: 3.25, 2: 6.75}  # of one and two columns of ICML
NARROWEST, WIDEST = 3.0, 20.0
FORMATS = ("png", "pdf", "svg")
TITLE, CAPTION, LABEL, TICK = 8.0, 6.5, 6.5, 6.0
TALLEST = 8.5  # a page of 9 without a caption
LOWEST_PANEL = 0.5

_DOTS_PER_INCH = 160
_BETWEEN = 0.1  # panels
_FIRST_HEIGHT = 40.0  # constrained layout gives up on a figure that is too low, and never on this one
_LONGEST_LABEL, _MOST_LINES = 44, 6  # of the legend: characters of a line, and lines
_LOOK: dict[str, Any] = {
    "text.parse_math": False,  # `$` in a name is a dollar, and no formula that may be malformed
    "font.size": LABEL,
    "axes.edgecolor": "0.4",
    "axes.linewidth": 0.6,
    "axes.titlesize": 7.0,
    "axes.titlepad": 3,
    "axes.labelsize": LABEL,
    "axes.labelpad": 2,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "xtick.labelsize": TICK,
    "ytick.labelsize": TICK,
    "xtick.major.size": 2,
    "ytick.minor.size": 0,
    "ytick.major.size": 0,
    "xtick.major.width": 0.6,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
    "legend.fontsize": LABEL,
    "lines.linewidth": 1.1,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
}


@dataclass(frozen=True)
class Layout:
    """How wide the figures of a report are, and whether they have a heading.

    Attributes:
        width: inches, from `NARROWEST` to `WIDEST`; otherwise `ValueError`.
        bare: without title and caption, for a paper that has captions of its own.
    """

    width: float = WIDTHS[2]
    bare: bool = False

    def __post_init__(self) -> None:
        if not NARROWEST <= self.width <= WIDEST:
            raise ValueError(
                f"a figure cannot be {self.width:g} inches wide: give {NARROWEST:g} to {WIDEST:g}, such as 5.5"
            )


def figure_style() -> AbstractContextManager:
    """The style of all figures, also while they are saved: ticks and their labels are made then."""
    return matplotlib.rc_context(_LOOK)


class Sheet:
    """A grid of panels of one size; `finish` adds heading and legend, and gives the figure its height.

    Args:
        layout: how wide it is, and whether it has a heading.
        count: how many panels it has.
        narrowest, widest: of a panel; a grid that is narrower than the sheet stands in its middle.
        left: what labels beside the panels take, about.
        stacked: how many panels stand below each other as one, as accuracy and loss do: `panels` has them in turn.
        subplots: what `Figure.subplots` takes besides.
    """

    def __init__(
        self,
        layout: Layout,
        count: int,
        narrowest: float = 1.0,
        widest: float = 2.6,
        left: float = 0.4,
        stacked: int = 1,
        **subplots: Any,
    ):
        self.layout = layout
        fitting = max(1, int((layout.width - left) / (narrowest + _BETWEEN)))
        lines = -(-count // fitting)
        self.columns = -(-count // lines)
        self.rows = lines * stacked
        self.width = min(layout.width, left + self.columns * (widest + _BETWEEN))
        self.panel_width = (self.width - left) / self.columns - _BETWEEN
        with figure_style():
            engine = ConstrainedLayoutEngine(h_pad=0.03, w_pad=0.03, hspace=0, wspace=0)
            self.figure = Figure(figsize=(layout.width, _FIRST_HEIGHT), layout=engine)
            grid = self.figure.subplots(self.rows, self.columns, squeeze=False, **{"sharey": True, **subplots})
        self.panels: list[Axes] = [
            grid[stacked * line + part, column]
            for line in range(lines)
            for column in range(self.columns)
            for part in range(stacked)
        ]
        for unused in self.panels[count * stacked :]:
            unused.remove()
        del self.panels[count * stacked :]

    def finish(
        self, title: str, caption: str, handles: Sequence[Artist] = (), height: float = 0.95, whole: bool = False
    ) -> Figure:
        """The figure with all its parts in place.

        Args:
            title, caption: what it shows, and how; a figure has both as its label, also if it is bare.
            handles: of the legend below the panels.
            height: of a panel; less where the figure would be higher than a page, unless it is to be kept `whole`.
        """
        figure, top = self.figure, 0.0
        figure.set_label(f"{title}: {caption}" if caption else title)
        for panel in self.panels:
            for artist in (*panel.lines, *panel.collections, *panel.patches, *panel.texts):
                artist.set_in_layout(False)  # inside the panel, or just above it
        with figure_style():
            if handles:
                _add_legend(figure, handles)
            texts = []
            for text, points, colour in ((title, TITLE, "black"), (caption, CAPTION, "0.35")):
                if text and not self.layout.bare:
                    wrapped = wrap_to(text, self.layout.width - 0.2, points)
                    made = figure.text(0.5, 1, wrapped, ha="center", va="top", fontsize=points, color=colour)
                    texts.append((made, top + 0.04))
                    top += 0.04 + (wrapped.count("\n") + 1) * 1.25 * points / 72
            self._arrange(_FIRST_HEIGHT, top)
            around = _FIRST_HEIGHT - self.rows * self.panels[0].get_position().height * _FIRST_HEIGHT
            if not whole:
                height = min(height, max(LOWEST_PANEL, (TALLEST - around) / self.rows))
            total = around + self.rows * height
            self._arrange(total, top)
            for text, below in texts:
                text.set_y(1 - below / total)
            figure.set_layout_engine("none")
        return figure

    def _arrange(self, total: float, top: float) -> None:
        """Runs the layout for a height: twice, since ticks, and with them their labels, depend on its outcome."""
        figure, engine = self.figure, self.figure.get_layout_engine()
        figure.set_size_inches(self.layout.width, total)
        share = self.width / self.layout.width
        engine.set(rect=((1 - share) / 2, 0, share, 1 - top / total))  # type: ignore[union-attr, call-arg]
        for _ in range(2):
            engine.execute(figure)  # type: ignore[union-attr]


def _add_legend(figure: Figure, handles: Sequence[Artist]) -> Legend:
    """A legend below the panels, in as many columns as fit."""
    for handle in handles:
        lines = fill(str(handle.get_label()), _LONGEST_LABEL, break_on_hyphens=False, max_lines=_MOST_LINES)
        handle.set_label(lines)
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(
            handles=handles, loc="outside lower center", ncols=columns, frameon=False, handlelength=1.8,
            handletextpad=0.5, columnspacing=1.2, labelspacing=0.35, borderpad=0.1, borderaxespad=0.2,
        )  # fmt: skip
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
    return legend


def wrap_to(text: str, inches: float, points: float) -> str:
    """The text in lines that are about so wide; words stay whole."""
    per_line = len(text) * inches / max(text_width(text, points), 0.1)
    return fill(text, max(8, int(0.97 * per_line)), break_on_hyphens=False)


def text_width(text: str, points: float) -> float:
    """How wide a text of one line is, in inches."""
    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=points), ismath=False)
    return width / 72


def caption_of(figure: Figure) -> str:
    """Title and caption, also of a figure that is bare."""
    return str(figure.get_label())


def save(figure: Figure, stem: Path, formats: Sequence[str] = ("png",)) -> list[Path]:
    """Writes `stem`.png and so on, each whole or not at all."""
    paths = [stem.with_name(f"{stem.name}.{name}") for name in formats]  # a stem may have dots
    with figure_style():
        for path in paths:
            drawn = io.BytesIO()
            figure.savefig(drawn, format=path.suffix[1:], dpi=_DOTS_PER_INCH)
            replace_file(path, drawn.getvalue())
    return paths
