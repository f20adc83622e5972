"""Reasons for numbers that are off: the rules, and the README's section."""

import pytest

from mixerlab.results import reasons
from mixerlab.results.reasons import Effect, Recipe, reason, section, with_section
from mixerlab.sweeps.published import Pair

OURS = {("attn", "mem", "a"): 0.8, ("attn", "mem", "b"): 0.6, ("gdn", "mem", "a"): 0.0}
PAIR = Pair("means", "mem", "attn", 0.40, 0.70, 2, 2)
ERROR = 0.01


def recipe(**scores):
    return [Recipe({"attn": "norms"}, {("attn", "mem", setting): score for setting, score in scores.items()})]


@pytest.mark.parametrize(
    ("recipes", "effects", "expected"),
    [
        ([], [], "Unexplained."),
        (recipe(a=0.2, b=0.6), [], "Explained: 0.400 with norms (2 of 2 settings run)."),
        (recipe(a=0.6), [], "In part (33%): 0.600 with norms (1 of 2 settings run)."),
        (recipe(a=0.7), [], "Unexplained."),  # a sixth of the difference
        (recipe(a=0.0, b=0.0), [], "Unexplained."),  # as far off on the other side
        (recipe(a=0.6) + recipe(a=0.5), [], "In part (50%): 0.550 with norms (1 of 2 settings run)."),  # the nearest
        (recipe(a=0.2, b=0.68) + recipe(a=0.2), [], "Explained: 0.440 with norms (2 of 2 settings run)."),  # the first
        ([], [Effect("biases", "attn", "mem", "a", -0.2, ERROR)], "Indicated: biases -0.20 (a)."),
        ([], [Effect("biases", "attn", "mem", "a", 0.2, ERROR)], "Unexplained."),  # away from the paper
        ([], [Effect("biases", "attn", "mem", "a", -0.2, 0.11)], "Unexplained."),  # within two errors
        ([], [Effect("biases", "attn", "mem", "a", -0.04, ERROR)], "Unexplained."),
        ([], [Effect("biases", "attn", "icr", "a", -0.2, ERROR)], "Unexplained."),
        ([], [Effect("biases", "gdn", "mem", "a", -0.2, ERROR)], "Unexplained."),
    ],
)
def test_the_rules(recipes, effects, expected):
    assert reason(PAIR, OURS, recipes, effects) == expected


def test_a_single_setting():
    pair = Pair("settings", "mem b", "attn", 1.0, 0.6, 1, 1)
    assert reason(pair, OURS, recipe(a=0.0, b=0.97), []) == "Explained: 0.970 with norms."


def test_the_readme_has_the_section_of_the_draft():
    text = reasons.README.read_text()
    assert with_section(text, section(reasons.RESULTS / "draft" / "rows.csv")) == text
    assert "| gdn mem | 0.418 | 0.792 | In part" in text


def test_a_readme_without_a_place_is_refused():
    with pytest.raises(ValueError, match="put them where the section goes"):
        with_section("# Results\n", "new")
