"""A mixer has one colour, marker and hatch everywhere, and columns of a mixer have shades of its colour."""

import itertools
import math

import pytest

from mixerlab.records.names import MIXERS
from mixerlab.sweeps.figures.styles import _from_oklch, _to_oklch, styles


def test_styles_are_fixed_and_distinct():
    known = styles(MIXERS)
    more = styles([*MIXERS, "novel", "another"])
    assert {name: more[name] for name in MIXERS} == known
    assert styles(["parallax"])["parallax"] == known["parallax"]
    assert list(more) == [*MIXERS, "another", "novel"]
    assert len({style.colour for style in more.values()}) == len(more)
    assert len({style.marker for style in more.values()}) == len(more)
    assert len({style.hatch for style in more.values()}) == len(more)
    assert styles(["novel", "attn", "another"])["novel"] == more["novel"]


def test_many_mixers_still_differ():
    many = styles(f"mixer{i:02}" for i in range(40)).values()
    assert len({(style.colour, style.marker) for style in many}) == 40
    fifteen = styles([*MIXERS, *(f"mixer{i}" for i in range(10))]).values()
    assert len({style.colour for style in fifteen}) == 15 and len({style.hatch for style in fifteen}) == 15


def test_the_columns_of_one_mixer_share_its_hue():
    look = styles([f"{mixer}, d_model={width}" for mixer in ("attn", "gdn") for width in (64, 128, 256)])
    assert list(look)[:3] == ["attn, d_model=64", "attn, d_model=128", "attn, d_model=256"]
    assert look["attn, d_model=128"].colour == styles(["attn"])["attn"].colour
    lightness = [_to_oklch(look[f"gdn, d_model={width}"].colour)[0] for width in (64, 128, 256)]
    assert lightness == sorted(lightness, reverse=True)
    assert all(len({getattr(style, part) for style in look.values()}) == 6 for part in ("colour", "marker", "hatch"))


@pytest.mark.parametrize("variants", [2, 3, 5])
def test_mixers_with_several_columns_share_no_colour_family(variants):
    """Of one variant, no two of fifteen mixers are taken for one colour, in the darkest shades either."""
    others = ("based", "delta", "gla", "hyena", "lion", "minimal", "retnet", "rwkv", "s4", "attn+gdn")
    look = styles(f"{mixer}, num_heads={2**n}" for mixer in (*MIXERS, *others) for n in range(variants))
    assert len({style.colour for style in look.values()}) == len(look) == 15 * variants
    for n in range(variants):
        shades = [_oklab(look[f"{mixer}, num_heads={2**n}"].colour) for mixer in (*MIXERS, *others)]
        assert min(math.dist(one, other) for one, other in itertools.combinations(shades, 2)) > 0.04
        assert min(math.dist(one, other) for one, other in itertools.combinations(shades[:5], 2)) > 0.08


def test_a_line_through_the_columns_of_a_mixer_has_its_hue():
    columns = [f"{mixer}, num_heads={n}" for mixer in ("attn", "a", "b") for n in (2, 4, 8)]
    middle = styles(columns)
    lines = styles(["attn", "b"], beside=columns)
    assert {mixer: style.colour for mixer, style in lines.items()} == {
        mixer: middle[f"{mixer}, num_heads=4"].colour for mixer in ("attn", "b")
    }
    assert styles(["attn", "b"], beside=["attn", "b"]) == styles(["attn", "b"])


def _oklab(colour):
    lightness, chroma, hue = _to_oklch(colour)
    return lightness, chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))


def test_colours_come_back_from_oklch():
    for colour in ("#0072B2", "#D55E00", "#FFFFFF", "#123456"):
        assert _from_oklch(*_to_oklch(colour)) == colour
