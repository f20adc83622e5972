"""A population that does not fit in the GPU's memory trains in halves, and a note says so."""

from functools import partialmethod

import pytest
import torch
from lightning.pytorch.loggers.logger import DummyLogger
from tiny_training import assert_same_results, fit, replica_results

from mixerlab.training.population import Population

REPLICAS = [(5e-3, 0), (1e-3, 0), (5e-3, 1)]


@pytest.fixture
def fits_up_to(monkeypatch):
    def limit(replicas):
        forward = Population.forward

        def limited(self, tokens, scored):
            if len(self) > replicas:
                raise torch.OutOfMemoryError(f"no room for {len(self)} replicas")
            return forward(self, tokens, scored)

        monkeypatch.setattr(Population, "forward", limited)

    return limit


class Kept(DummyLogger):
    def __init__(self):
        super().__init__()
        self.rates = {}

    def log_metrics(self, metrics, step=None):
        self.rates |= {name: rate for name, rate in metrics.items() if name.startswith("learning_rate")}


def test_halves_give_the_results_of_the_whole(tmp_path, fits_up_to):
    options = {"keep_weights": "both", "execution": "loop"}
    whole = fit(REPLICAS, tmp_path / "whole", **options)
    fits_up_to(1)
    logger = Kept()
    halved = fit(REPLICAS, tmp_path / "halved", loggers=[logger], **options)
    assert len(halved.notes) == 3 and "out of memory with 3 replicas" in halved.notes[0]
    assert halved.notes[2:] == whole.notes
    assert sorted(halved.metrics["replica"].unique()) == [0, 1, 2]
    for replica in range(len(REPLICAS)):
        assert_same_results(replica_results(whole, replica), replica_results(halved, replica))
    torch.testing.assert_close(halved.weights, whole.weights, rtol=1e-4, atol=1e-5)
    assert logger.rates == {f"learning_rate/lr-{lr:g}_seed-{seed}": pytest.approx(lr) for lr, seed in REPLICAS}


@pytest.mark.slow
def test_an_interrupted_half_does_not_repeat_the_other(tmp_path, fits_up_to, monkeypatch):
    undisturbed = fit(REPLICAS, tmp_path / "undisturbed")
    fits_up_to(2)
    limited, ran = Population.forward, []  # for each step of a population, the number of replicas that it has

    def counted(self, tokens, scored, interrupts=True):
        if interrupts and len(self) == 1 and self.training:
            raise InterruptedError("the second half")
        ran.append(len(self))
        return limited(self, tokens, scored)

    monkeypatch.setattr(Population, "forward", counted)
    with pytest.raises(InterruptedError):
        fit(REPLICAS, tmp_path / "halved")
    assert ran.count(2) > 10
    ran.clear()
    monkeypatch.setattr(Population, "forward", partialmethod(counted, interrupts=False))
    halved = fit(REPLICAS, tmp_path / "halved")
    assert set(ran) == {3, 1}  # the whole, which does not fit, and the half that was interrupted
    for replica in range(len(REPLICAS)):
        assert_same_results(replica_results(undisturbed, replica), replica_results(halved, replica))


def test_one_replica_that_does_not_fit_is_an_error(tmp_path, fits_up_to):
    fits_up_to(0)
    with pytest.raises(torch.OutOfMemoryError, match="no room for 1 replicas"):
        fit(REPLICAS[:2], tmp_path)
