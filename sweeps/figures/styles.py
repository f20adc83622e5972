"""The looks of the columns of tables: colour, marker and hatch, the same in every figure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mixerlab.records.names import MIXERS, in_order, mixer_of

# Okabe and Ito's colours, which readers with colour-blindness tell apart, then others for mixers to come.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
_MORE_COLOURS = (
    "#111111", "#56B4E9", "#882255", "#8A8A1E", "#F2D13C", "#7B4FD0", "#8C5A2B", "#FF6F91", "#8F8F8F", "#66D0B8",
)  # fmt: skip
_MARKERS = ("o", "s", "^", "D", "v")
_MORE_MARKERS = ("P", "*", "X", "<", ">", "h", "p", "d", "8", "H", "o")
# Of bars, for readers without colours; the first of each list is plain.
_HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx")
_MORE_HATCHES = ("----", "||||", "++++", "oooo", "////....", "\\\\\\\\....", "----....", "||||....", "OO", "**", "xx--")
# Hues (degrees) and chromas in OKLCH of the mixers after the known ones, if mixers have several columns each: then
# black is no colour, and sky blue would be a shade of blue. The last two are brown and grey.
_HUES = (
    (295, 0.17), (126, 0.13), (205, 0.11), (20, 0.18), (322, 0.19), (98, 0.17), (270, 0.15), (146, 0.2), (60, 0.07),
    (0, 0.0),
)  # fmt: skip
_MIDDLE = 0.62  # the lightness of their middle shade


@dataclass(frozen=True)
class Style:
    """How a column of the tables is drawn."""

    colour: str
    marker: str
    hatch: str


def styles(columns: Iterable[str], beside: Iterable[str] = ()) -> dict[str, Style]:
    """One style per column: fixed for the known mixers, the next free one for others in alphabetical order.

    If mixers have several columns, `attn, d_model=64` and `attn, d_model=128`, each mixer has a hue of its own, its
    columns are shades of that from light to dark, and markers and hatches differ between all columns, as far as there
    are enough. The columns of a single mixer have colours of their own.

    Args:
        columns: to draw.
        beside: the columns that other figures of the report draw: mixers have the hues that they have there.
    """
    names, others = in_order(columns, MIXERS), in_order(beside, MIXERS)
    families = _by_mixer(names)
    places = _places(in_order({*families, *_by_mixer(others)}, MIXERS))
    if len(places) == 1 and len(names) > 1:
        return dict(zip(names, map(_nth, range(len(names))), strict=True))
    several = len(families) < len(names)
    hues = several or (len(places) > 1 and len(_by_mixer(others)) < len(others))
    result = {}
    for mixer, members in families.items():
        for number, name in enumerate(members):
            style = _nth(names.index(name) if several else places[mixer])
            shade = _shade(places[mixer], (number + 0.5) / len(members)) if hues else style.colour
            result[name] = Style(shade, style.marker, style.hatch)
    return {name: result[name] for name in names}


def _by_mixer(names: Iterable[str]) -> dict[str, list[str]]:
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(mixer_of(name), []).append(name)
    return families


def _places(mixers: Iterable[str]) -> dict[str, int]:
    """Which colour each mixer has: the known ones their own, the others the next after those."""
    places: dict[str, int] = {}
    others = len(MIXERS)
    for mixer in mixers:
        places[mixer] = MIXERS.index(mixer) if mixer in MIXERS else others
        others += mixer not in MIXERS
    return places


def _nth(place: int) -> Style:
    if place < len(MIXERS):
        return Style(_COLOURS[place], _MARKERS[place], _HATCHES[place])
    place -= len(MIXERS)
    kinds = _MORE_COLOURS, _MORE_MARKERS, _MORE_HATCHES
    return Style(*(kind[place % len(kind)] for kind in kinds))


def _shade(place: int, share: float) -> str:
    """A shade of the hue of a mixer, from light (0) to dark (1); the middle one is its own colour."""
    if place < len(MIXERS):
        lightness, chroma, hue = _to_oklch(_COLOURS[place])
    else:
        hue, chroma = _HUES[(place - len(MIXERS)) % len(_HUES)]
        lightness = _MIDDLE
    if share < 0.5:
        away = 1 - 2 * share
        lightness, chroma = lightness + 0.62 * (0.94 - lightness) * away, chroma * (1 - 0.35 * away)
    else:
        away = 2 * share - 1
        lightness, chroma = lightness * (1 - 0.42 * away), chroma * (1 - 0.2 * away)
    return _from_oklch(lightness, chroma, hue)


def _to_oklch(colour: str) -> tuple[float, float, float]:
    """Lightness in [0, 1], chroma and hue (degrees) of `#RRGGBB`: Ottosson (2020), "A perceptual color space"."""
    red, green, blue = (_linear(int(colour[start : start + 2], 16) / 255) for start in (1, 3, 5))
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    medium = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    a = 1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short
    b = 0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short
    lightness = 0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short
    return lightness, math.hypot(a, b), math.degrees(math.atan2(b, a)) % 360


def _from_oklch(lightness: float, chroma: float, hue: float) -> str:
    """The inverse of `_to_oklch`; a colour that no screen shows loses chroma until one does."""
    while True:
        a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
        long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
        medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
        short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
        parts = (
            4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
            -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
            -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
        )
        if chroma < 0.001 or all(-1e-4 <= part <= 1.0001 for part in parts):
            return "#" + "".join(f"{round(255 * _encoded(min(1.0, max(0.0, part)))):02X}" for part in parts)
        chroma *= 0.97


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def _encoded(part: float) -> float:
    return 12.92 * part if part <= 0.0031308 else 1.055 * part ** (1 / 2.4) - 0.055
