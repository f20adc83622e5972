"""AdamW beside Muon: which replicas count, and what the lead of Parallax is."""

import numpy as np
import pandas as pd
import pytest

from mixerlab.results.adamw import beside_muon

RATES = (1e-3, 3e-3)
LEVEL = ("icr_challenge", "256-512")


def rows(mixer, seed, scores, level=LEVEL):
    """A replica for each rate; None has diverged."""
    return [
        {
            "mixer": mixer,
            "task": level[0],
            "setting": level[1],
            "seed": seed,
            "lr": lr,
            "status": "diverged" if score is None else "finished",
            "official_accuracy": np.nan if score is None else score,
            "steps_to_90": 100.0 if score is not None and score > 0.95 else np.inf,
        }
        for lr, score in zip(RATES, scores, strict=False)
    ]


@pytest.fixture
def seeds():
    every = [
        *rows("attn", 0, [0.5, None]),
        *rows("parallax", 0, [0.508, 0.99]),
        *rows("attn", 1, [0.4, 0.3]),
        *rows("parallax", 1, [0.1, 0.1]),
        *rows("attn", 2, [0.9, 0.9]),
        *rows("parallax", 2, [0.9]),  # lacks a rate
        *rows("mamba", 0, [1.0, 1.0]),
    ]
    return beside_muon.whole_seeds(pd.DataFrame(every), RATES)


def test_a_seed_counts_if_it_has_all_rates_also_if_one_diverged(seeds):
    assert sorted(seeds.index) == [("attn", *LEVEL, seed) for seed in (0, 1, 2)] + [
        ("parallax", *LEVEL, seed) for seed in (0, 1)
    ]
    assert seeds.loc[("attn", *LEVEL, 0), "accuracy"].tolist() == [0.5, 0.0]
    assert seeds.loc[("attn", *LEVEL, 0), "learned"].tolist() == [False, False]


def test_the_lead_is_over_the_seeds_that_both_have(seeds):
    both = beside_muon._both(seeds, [LEVEL])
    line = beside_muon._lead("recall", "AdamW", both)
    by_seed = "+0.490, -0.300"  # 0.99 - 0.5 and 0.1 - 0.4
    # At the same rate: 0.508 - 0.5 is a tie, 0.99 - 0 ahead, 0.1 - 0.4 and 0.1 - 0.3 behind.
    assert line == f"| recall | AdamW | 2 | +0.095 | {by_seed} | 1 | 1 | 2 | 0 of 4 | 1 of 4 |"
    assert beside_muon._entry(both["parallax"]) == "0.545 (1 of 4)"


def test_no_difference_has_no_sign():
    assert beside_muon._signed(-0.0004) == "+0.000"


def test_the_lower_rate_stands_beside_the_best_of_the_three_for_seeds_that_have_both(monkeypatch):
    monkeypatch.setattr(beside_muon.plan, "LOW_ADAMW_RATES", ("1e-3",))
    monkeypatch.setattr(beside_muon.plan, "ADAMW_RATES", ("3e-3",))
    every = [
        *rows("attn", 0, [0.2, 0.96]),
        *rows("attn", 1, [0.3, None]),
        *rows("attn", 2, [0.4]),  # only the lower rate
        *rows("parallax", 0, [0.97, 0.1], ("ncr_vocab_challenge", "512-2048")),
    ]
    _, _, *lines = beside_muon.lower_rates(pd.DataFrame(every))
    assert lines[:2] == [
        "| `icr_challenge` | 256-512 | attn | 0, 1 | 0.200, 0.300 | 0.960, 0.000 | 0 of 2 | 1 of 2 |",
        "| `ncr_vocab_challenge` | 512-2048 | parallax | 0 | 0.970 | 0.100 | 1 of 1 | 0 of 1 |",
    ]
