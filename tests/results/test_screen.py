"""The screen's tables are what its rows say, and the rules by which they are made."""

import pandas as pd
import pytest

from mixerlab.results.plan import RESULTS
from mixerlab.results.screen import analyse, claims, design

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
