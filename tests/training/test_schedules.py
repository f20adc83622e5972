"""The multipliers of learning rate and weight decay over the course of training."""

import math

import pytest
import torch

from mixerlab.training.schedules import WSD, Constant, Cosine

PROGRESS = torch.tensor([0.0, 0.05, 0.1, 0.5, 0.8, 0.9, 0.95])


def check(got, expected):
    torch.testing.assert_close(got, torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_wsd_by_default_has_no_warmup_and_decays_over_the_last_fifth():
    check(WSD().learning_rate(PROGRESS), [1.0, 1, 1, 1, 1, 0.5, 0.25])
    check(WSD().weight_decay(PROGRESS), [1.0] * 7)


def test_wsd_warms_up():
    check(WSD(warmup=0.1).learning_rate(PROGRESS), [0.0, 0.5, 1, 1, 1, 0.5, 0.25])


def test_wsd_anneals_the_weight_decay_with_gamma():
    check(WSD(gamma=2.0).weight_decay(PROGRESS), [1.0, 1, 1, 1, 1, 0.25, 0.0625])


def test_cosine():
    expected = [0.5 * (1 + math.cos(math.pi * p)) for p in PROGRESS.tolist()]
    check(Cosine(warmup=0.0).learning_rate(PROGRESS), expected)
    warm = Cosine(warmup=0.1).learning_rate(torch.tensor([0.0, 0.05, 0.1, 0.55, 1.0]))
    check(warm, [0.0, 0.5, 1.0, 0.5, 0.0])
    check(Cosine().weight_decay(PROGRESS), [1.0] * 7)


def test_constant():
    check(Constant().learning_rate(PROGRESS), [1.0] * 7)
    check(Constant().weight_decay(PROGRESS), [1.0] * 7)


def test_wsd_may_have_no_stable_phase():
    for warmup in range(100):  # 1 - 0.8 < 0.2
        WSD(warmup / 100, (100 - warmup) / 100)


@pytest.mark.parametrize(
    ("schedule", "options", "named"),
    [
        (WSD, {"decay": 0.0}, "schedule.decay=0.0"),
        (WSD, {"warmup": 0.5, "decay": 0.6}, "schedule.warmup=0.5"),
        (WSD, {"warmup": -0.1}, "schedule.warmup=-0.1"),
        (WSD, {"gamma": -1.0}, "schedule.gamma=-1.0"),
        (WSD, {"gamma": math.nan}, "schedule.gamma=nan"),
        (Cosine, {"warmup": 1.0}, "schedule.warmup=1.0"),
    ],
)
def test_refuses_with_the_key_and_the_value(schedule, options, named):
    with pytest.raises(ValueError, match=named):
        schedule(**options)
