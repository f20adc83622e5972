"""Reasons for numbers that are off: the rules, and the README's section."""

import json

import pandas as pd
import pytest

from mixerlab.results import reasons
from mixerlab.results.reasons import (
    Changed,
    Effect,
    Recipe,
    alone,
    effects_of,
    false_alarms,
    mirrored,
    reason,
    recipes_of,
    section,
    targets,
    with_recipe,
    with_section,
)
from mixerlab.sweeps.report.published import Pair

OURS = {("attn", "mem", "a"): {0: 0.8}, ("attn", "mem", "b"): {0: 0.6}, ("gdn", "mem", "a"): {0: 0.0}}
PAIR = Pair("means", "mem", "attn", 0.40, 0.70, 2, 2)
ERROR = 0.01
TOLD = json.loads(reasons.EXPERIMENTS.read_text())


def recipe(**scores):
    """One that ran these settings with seed 0."""
    by_cell = {("attn", "mem", setting): {0: score} for setting, score in scores.items()}
    return [Recipe("new", {"attn": "norms"}, by_cell)]


def biases(size, error=ERROR, setting="a", task="mem", mixer="attn"):
    return Effect("biases", mixer, task, setting, size, error)


@pytest.mark.parametrize(
    ("recipes", "effects", "expected"),
    [
        ([], [], "Unexplained."),
        (recipe(a=0.2, b=0.6), [], "Explained: 0.400 with norms (2 of 2 settings run)."),
        (recipe(a=0.6), [], "In part (33%): 0.600 with norms (1 of 2 settings run)."),
        (recipe(a=0.7), [], "Unexplained."),  # a sixth of the difference
        (recipe(a=0.0, b=0.0), [], "Unexplained."),  # as far off on the other side
        (recipe(a=0.05, b=0.6), [], "Unexplained."),  # nearer, but on the other side
        (recipe(a=0.7) + recipe(a=0.66), [], "Unexplained."),  # neither removes a quarter
        (recipe(c=0.0), [], "Unexplained."),  # it has no run of these settings
        (recipe(a=0.6) + recipe(a=0.5), [], "In part (50%): 0.550 with norms (1 of 2 settings run)."),  # the nearest
        (recipe(a=0.2, b=0.68) + recipe(a=0.2), [], "Explained: 0.440 with norms (2 of 2 settings run)."),  # the first
        ([], [biases(-0.2)], "Indicated: biases -0.20 (a)."),
        ([], [biases(0.2)], "Unexplained."),  # away from the paper
        ([], [biases(-0.2), biases(0.3, setting="b")], "Indicated: biases +0.30 (b, away), biases -0.20 (a)."),
        ([], [biases(-0.2), biases(0.04, setting="b")], "Indicated: biases -0.20 (a)."),
        ([], [biases(-0.2), biases(0.3, setting="b", error=0.1)], "Indicated: biases -0.20 (a)."),
        ([], [biases(-0.2, error=0.051)], "Unexplained."),  # within four errors
        ([], [biases(-0.04)], "Unexplained."),
        ([], [biases(-0.2, task="icr")], "Unexplained."),
        ([], [biases(-0.2, mixer="gdn")], "Unexplained."),
    ],
)
def test_the_rules(recipes, effects, expected):
    assert reason(PAIR, OURS, recipes, effects) == expected


def test_a_small_gain_explains_nothing():
    """Even if the number was nearly explained before."""
    pair = Pair("settings", "mem b", "attn", 0.54, 0.6, 1, 1)
    assert reason(pair, OURS, recipe(b=0.59), []) == "Unexplained."
    assert reason(pair, OURS, recipe(b=0.58), []) == "Explained: 0.580 with norms."


def test_a_single_setting():
    pair = Pair("settings", "mem b", "attn", 1.0, 0.6, 1, 1)
    assert reason(pair, OURS, recipe(a=0.0, b=0.97), []) == "Explained: 0.970 with norms."


def test_a_recipe_is_compared_over_the_seeds_that_both_have():
    pair = Pair("settings", "mem b", "attn", 0.2, 0.6, 1, 1)
    ours = {("attn", "mem", "b"): {0: 0.3, 1: 0.9}}
    (new,) = recipe(b=0.27)
    assert with_recipe(pair, ours, new) == Changed(without=0.3, mean=0.27, run=1, settings=1)
    # Compared with the mean of our seeds, 0.6, it would be 82%.
    assert reason(pair, ours, [new], []) == "In part (30%): 0.270 instead of 0.300 with norms."
    near = {("attn", "mem", "b"): {0: 0.24, 1: 0.96}}
    assert reason(pair, near, recipe(b=0.2), []) == "Unexplained."  # with this seed, ours was not off
    assert with_recipe(pair, {("attn", "mem", "b"): {1: 0.9}}, new) is None


def test_of_a_mean_ours_stands_in_with_all_its_seeds():
    ours = {("attn", "mem", "a"): {0: 0.8, 1: 0.0}, ("attn", "mem", "b"): {0: 0.6, 1: 0.2}}
    changed = with_recipe(PAIR, ours, recipe(a=0.2)[0])
    assert changed == Changed(without=pytest.approx(0.6), mean=pytest.approx(0.3), run=1, settings=2)


def test_what_the_rules_make_of_numbers_as_far_off_in_the_other_direction():
    at_one = Pair("settings", "mem a", "attn", 0.5, 0.8, 1, 1)  # its mirror image would be 1.1
    told = mirrored([PAIR, at_one], OURS, recipe(a=0.2), [])
    assert "For 1 number it is a possible accuracy. Of these, 1 are explained and 0 in part or indicated;" in told
    assert told.endswith("of their mirror images, 0 and 0.")
    assert mirrored([PAIR], OURS, recipe(b=0.9), []).endswith("of their mirror images, 0 and 1.")
    assert "For 0 numbers" in mirrored([at_one], OURS, recipe(a=0.2), [])


def test_what_one_recipe_does_to_all_numbers():
    near = Pair("settings", "mem b", "attn", 0.6, 0.6, 1, 1)
    other = Pair("means", "mem", "gdn", 0.5, 0.0, 1, 1)  # the recipe has no runs of it
    (brings_in,), (puts_out,) = recipe(a=0.2), recipe(a=0.0, b=0.8)
    assert alone([PAIR, near, other], OURS, brings_in) == (1, 1, 1, 0)
    assert alone([PAIR, near, other], OURS, puts_out) == (2, 1, 1, 1)


def test_a_recipe_has_the_best_of_the_papers_rates_and_only_the_mixers_that_it_changes():
    made = {one.label: one for one in recipes_of(TOLD, [5e-3, 1e-3])}
    rows = pd.read_csv(reasons.RESULTS / "rounding" / "rows.csv", low_memory=False)
    rows = rows[(rows["mixer"] == "gdn") & (rows["task"] == "mem") & (rows["setting"] == "vocab_size-4096")]
    best = rows[rows["lr"] > 5e-4]["official_accuracy"].max()
    assert made["draft"].scores["gdn", "mem", "vocab_size-4096"] == {0: best}
    of_mamba = made["`2x64`, for mamba"].scores
    assert {mixer for mixer, _, _ in of_mamba} == {"mamba"}
    assert {"icr", "icr_challenge"} < {task for _, task, _ in of_mamba}, "from both of its files"
    assert made["default, last epoch"].changes["attn"] == "the accuracy of the last epoch"


def test_a_seed_of_a_recipe_that_lacks_a_rate_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(reasons, "RESULTS", tmp_path)
    told = {"recipes": [{"label": "new", "rows": ["rows.csv"], "changes": {"attn": "norms"}}]}
    rows = "mixer,task,setting,seed,lr,status,official_accuracy,test_accuracy\n"
    rows += "".join(f"attn,mem,a,{seed},{lr},finished,0.5,0.4\n" for seed, lr in [(0, 5e-3), (0, 1e-3), (1, 5e-3)])
    (tmp_path / "rows.csv").write_text(rows)
    best, last = recipes_of(told, [5e-3, 1e-3])
    assert best == Recipe("new", {"attn": "norms"}, {("attn", "mem", "a"): {0: 0.5}})
    assert last.label == "new, last epoch" and last.scores == {("attn", "mem", "a"): {0: 0.4}}
    assert last.changes == {"attn": "norms, the accuracy of the last epoch"}


def test_an_effect_is_that_of_leaving_the_default():
    """Linear weights from N(0, 0.02) are the default, 16 heads are not."""
    effects = {(one.mixer, one.task, one.setting, one.what): one.size for one in effects_of(TOLD)[0]}
    raw = pd.read_csv(reasons.RESULTS / "screen" / "effects.csv")
    cell = raw[(raw["mixer"] == "attn") & (raw["task"] == "icr") & raw["se"].notna()].iloc[0]
    assert effects["attn", "icr", cell["setting"], "PyTorch's initial values"] == -cell["effect_A"] < 0
    assert effects["attn", "icr", cell["setting"], "16 heads"] == cell["effect_B"]


def test_effects_of_factors_that_a_mixer_lacks_are_false_alarms():
    own, phantoms = effects_of(TOLD)
    assert not any(effect.what == "random W_R" or (effect.mixer, effect.what) == ("parallax", "E") for effect in own)
    assert not any((effect.mixer, effect.what) == ("parallax", "E") for effect in phantoms)  # it has E: confounded
    assert {effect.what for effect in phantoms if effect.mixer == "attn"} == {"E", "G"}
    assert "flags 4 of 68 of these (4 of 14 for attn); with two standard errors it would flag 5." in false_alarms(
        phantoms
    )


def test_targets():
    bars = [Pair("settings", f"sc {n}", "attn", 0.5, 0.5 + off, 1, 1) for n, off in enumerate((0.15, 0.16, -0.15))]
    told = targets([PAIR, *bars, Pair("settings", "sc 3", "attn", 0.5, None, 0, 1)])
    assert told[4].endswith("| 0.300 (1 comparable) |")
    assert told[5].endswith("| 2 of the 3 comparable; at most 3 if all others were |")
    assert targets([PAIR, *bars])[5].endswith("| 2 of 3 |")


def test_the_readme_has_the_section_of_the_table_and_of_the_challenge():
    text = reasons.README.read_text()
    assert with_section(text, section(reasons.RESULTS / "table" / "rows.csv")) == text
    assert "| gdn mem | 0.668 | 0.792 | Unexplained. |" in text
    assert "| attn sc_challenge 512-2048 | 0.648 | 0.240 | Explained: 0.248 with PyTorch's" in text


def test_a_readme_without_a_place_is_refused():
    with pytest.raises(ValueError, match="put them where the section goes"):
        with_section("# Results\n", "new")
