"""The screen's tables are what its rows say, and the rules by which they are made."""

import pandas as pd
import pytest

from mixerlab.results.plan import RESULTS
from mixerlab.results.screen import analyse, claims, design, w_r

SCREEN = RESULTS / "screen"
CELL = ("fcr", "a")


@pytest.fixture(scope="module")
def rows():
    return pd.read_csv(SCREEN / "rows.csv", low_memory=False)


def test_the_tables_are_what_the_rows_say(rows):
    table = analyse.responses(rows)
    for name, made in (("responses", table), ("effects", analyse.effects(table)), ("pairs", analyse.pairs(table))):
        assert (SCREEN / f"{name}.csv").read_text() == made.round(4).to_csv(index=False)


def test_of_equal_rates_the_highest_is_named_in_any_order(rows):
    table = analyse.responses(rows)
    pd.testing.assert_frame_equal(
        table.reset_index(drop=True), analyse.responses(rows.iloc[::-1]).reset_index(drop=True)
    )


def test_no_recipe_separates_e_from_the_interaction_of_a_b_and_f():
    assert all(levels["E"] == levels["A"] * levels["B"] * levels["F"] for levels in design.recipes())


def test_the_claims_are_what_the_rows_say(rows):
    assert (SCREEN / "claims.md").read_text() == claims.report(rows)


@pytest.mark.parametrize(
    ("attn", "parallax", "expected"),
    [
        (0.10, 0.12, claims.Count(1, 0, 0, 0)),  # neither has learned: the order says nothing
        (0.175, 0.10, claims.Count(1, 0, 0, 0)),
        (0.18, 0.10, claims.Count(0, 1, 0, 0)),
        (0.10, 0.20, claims.Count(0, 1, 1, 1)),
        (0.20, 0.205, claims.Count(0, 1, 1, 0)),
        (0.20, None, claims.Count(0, 0, 0, 0)),  # not run
    ],
)
def test_a_recipe_counts_where_one_mixer_is_above_chance(attn, parallax, expected):
    told = {("attn", *CELL, "A"): attn, ("parallax", *CELL, "A"): parallax}
    index = pd.MultiIndex.from_tuples(told, names=["mixer", "task", "setting", "recipe"])
    scores = pd.Series(list(told.values()), index).dropna()
    assert claims.count(scores, "parallax", ("attn", "parallax"), (CELL,), 0.125) == expected


def test_w_r_is_tried_at_both_levels_of_all_that_the_screen_ties_it_to():
    runs = design.w_r()
    for task, setting in {(run["task"], run["setting"]) for run in runs}:
        levels = [(run["A"], run["E"], run["F"]) for run in runs if (run["task"], run["setting"]) == (task, setting)]
        assert len(levels) == len(set(levels)) == 8
    assert {run["B"] for run in runs} == {-1}  # two heads
    assert all(("zero_init_rho=false" in run["overrides"]) == (run["E"] == 1) for run in runs)


def test_w_r_is_compared_at_the_best_rate_of_each_side_on_the_seeds_of_both():
    scores = {(-1, 1e-3): (0.9, 0.8, 0.7), (-1, 5e-3): (0.6, 0.9, 0.1), (1, 1e-3): (0.1, 0.1), (1, 5e-3): (0.5, 0.3)}
    rows = pd.DataFrame(
        {
            "task": "mem",
            "setting": "a",
            "recipe": "AEF" if level == 1 else "AF",
            "lr": lr,
            "seed": seed,
            "device": "cpu",
        }
        | {"status": "finished", "official_accuracy": accuracy}
        for (level, lr), accuracies in scores.items()
        for seed, accuracy in enumerate(accuracies)
    )
    (found,) = w_r.differences(rows)
    assert found["zero"] == [0.9, 0.8] and found["random"] == [0.5, 0.3]
    assert "| 0.850 | 0.400 | -0.450 ± 0.635 | 2 | cpu |" in w_r.report(rows)


def test_the_page_on_w_r_is_what_its_rows_say():
    rows = pd.concat([pd.read_csv(SCREEN / f"{name}_rows.csv") for name in ("w_r", "w_r_cpu")])
    assert (SCREEN / "w_r.md").read_text() == w_r.report(rows)
