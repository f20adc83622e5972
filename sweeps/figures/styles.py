"""How columns look, and what they are called beside each other. A mixer has one colour in every figure."""

from collections.abc import Iterable
from dataclasses import dataclass

from matplotlib.colors import to_hex, to_rgb

from mixerlab.records.names import MIXERS, in_order
from mixerlab.sweeps.tables.columns import Column, columns_in_order, labels, shared, short_names

# Okabe and Ito's colours, which readers with colour-blindness tell apart, for the known mixers; then others.
_COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00",
    "#111111", "#56B4E9", "#882255", "#8A8A1E", "#F2D13C", "#7B4FD0", "#8C5A2B", "#FF6F91", "#8F8F8F", "#66D0B8",
)  # fmt: skip
_MARKERS = ("o", "s", "^", "D", "v", "P", "*", "X", "<", ">", "h", "p", "d", "8", "H")
_LIGHTEST, _DARKEST = 0.6, 0.5  # how much white or black the outer shades of a colour have


@dataclass(frozen=True)
class Style:
    """How a column of the tables is drawn."""

    colour: str
    marker: str


def styles(columns: Iterable[Column], among: Iterable[Column] = ()) -> dict[Column, Style]:
    """A style for each column: fixed for the known mixers, the next free one for the others in alphabetical order.

    The columns of one mixer have shades of its colour, from light to dark, and markers of their own. Those of a figure
    with a single mixer have colours of their own. `among` are all columns of a report, so that a mixer has the colour
    that it has in other figures.
    """
    columns = columns_in_order(columns)
    mixers = [*MIXERS, *in_order({column.mixer for column in {*columns, *among}} - set(MIXERS), ())]
    if len({column.mixer for column in columns}) == 1 < len(columns):
        return {column: _style(number, number) for number, column in enumerate(columns)}
    found: dict[Column, Style] = {}
    for number, column in enumerate(columns):
        family = [other for other in columns if other.mixer == column.mixer]
        place, shade = mixers.index(column.mixer), (family.index(column) + 0.5) / len(family)
        found[column] = _style(place, number if len(columns) > len(mixers) else place, shade)
    return found


def _style(colour: int, marker: int, shade: float = 0.5) -> Style:
    return Style(_shade(_COLOURS[colour % len(_COLOURS)], shade), _MARKERS[marker % len(_MARKERS)])


def _shade(colour: str, place: float) -> str:
    """A shade from light (0) over the colour itself (0.5) to dark (1)."""
    other, share = (1.0, _LIGHTEST * (1 - 2 * place)) if place < 0.5 else (0.0, _DARKEST * (2 * place - 1))
    red, green, blue = ((1 - share) * part + share * other for part in to_rgb(colour))
    return to_hex((red, green, blue))


def short_labels(columns: Iterable[Column]) -> tuple[dict[Column, str], str]:
    """A label for each column without the keys that all have in common, and a line on these."""
    columns = list(columns)
    common = shared(columns)
    short = short_names(common)
    own = {column: column.without(common) for column in columns}
    texts = labels(own.values())
    pairs = ", ".join(f"{short[key]}={value}" for key, value in common.items())
    return {column: texts[own[column]] for column in columns}, f"all: {pairs}" if pairs else ""
