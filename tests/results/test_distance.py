"""How far recipes are from the paper: the page is what the rows say, and what its readings mean."""

import pandas as pd
import pytest

from mixerlab.results.screen import distance

ROWS = pd.DataFrame(
    [("gdn", "mem", setting, lr, best, last) for setting, lr, best, last in (
        ("a", 0.005, 0.9, 0.5), ("a", 0.001, 0.8, 0.8), ("b", 0.005, 0.4, 0.4), ("b", 0.001, 0.6, 0.3),
    )],
    columns=["mixer", "task", "setting", "lr", "official_accuracy", "test_accuracy"],
)  # fmt: skip


def test_the_page_is_what_the_rows_say():
    assert (distance.RESULTS / "screen" / "distance.md").read_text() == distance.report()


@pytest.mark.parametrize(
    ("checkpoint", "rate", "mean"),
    [
        ("lowest test loss", "each setting's best", (0.9 + 0.6) / 2),
        ("lowest test loss", "each task's best", (0.8 + 0.6) / 2),
        ("lowest test loss", "5e-3 for all", (0.9 + 0.4) / 2),
        ("last epoch", "each setting's best", (0.8 + 0.4) / 2),
        ("last epoch", "each task's best", (0.8 + 0.3) / 2),
    ],
)
def test_readings(checkpoint, rate, mean):
    assert distance.means_of(ROWS, checkpoint, rate)["gdn", "mem"] == pytest.approx(mean)


def test_the_draft_stands_in_for_settings_that_were_not_run():
    draft, finalists = ROWS.assign(recipe="draft"), ROWS[ROWS["setting"] == "a"].assign(recipe="2x64")
    rows = distance.completed(finalists, draft)
    assert rows.groupby("setting")["recipe"].unique().map(list).to_dict() == {"a": ["2x64"], "b": ["draft"]}
