"""The weights that a run keeps are those of the epochs that its results name, whatever happens on the way."""

from functools import partial

import pytest
import torch
from test_population import FAST, SLOW, WILD
from tiny_training import build_model, equal, fit, interrupted, splits

from mixerlab.training.metrics import CHOSEN_ON
from mixerlab.training.population import Population
from mixerlab.training.weights import KeptWeights, model_state

STOPPING = {"data": splits(), "epochs": 7, "stop_when_perfect": True}


same = partial(torch.testing.assert_close, rtol=0, atol=0)


@pytest.fixture
def states(monkeypatch):
    """The state of each replica's model at the end of each epoch, in which it may have stopped before."""
    found = {}
    update = KeptWeights.update

    def noted(self, epoch, perplexity, active, learned):
        for row, number in enumerate(self.numbers):
            found[number, epoch] = learned[0][row].clone()
        update(self, epoch, perplexity, active, learned)

    monkeypatch.setattr(KeptWeights, "update", noted)
    return found


@pytest.mark.parametrize(
    ("replicas", "settings"),
    [
        ([WILD, SLOW, FAST], STOPPING),
        # On random targets a model that overfits is best early, and not in the same epoch on val as on test.
        pytest.param(
            [(2e-2, seed) for seed in range(4)],
            {"data": splits(train=32, learnable=False), "epochs": 8},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_weights_are_those_of_the_epochs_in_the_results(tmp_path, states, replicas, settings):
    none, both = (fit(replicas, tmp_path / keep, **settings, keep_weights=keep) for keep in ("none", "both"))
    assert equal(none, both) and none.notes == both.notes == []
    assert none.weights == [{}] * len(replicas)
    population = Population(build_model, [seed for _, seed in replicas])
    chosen = set()
    for number, (results, weights) in enumerate(zip(both.replicas, both.weights, strict=True)):
        epochs = {selection: results[f"{selection}_epoch"] for selection in CHOSEN_ON}
        assert weights.keys() == {selection for selection, epoch in epochs.items() if epoch is not None}
        for selection, state in weights.items():
            same(state, model_state(population, [states[number, epochs[selection]]]))
        chosen |= set(epochs.values())
    assert len(chosen) >= 3  # they are taken at different epochs, or at none


def test_snapshots_are_the_weights_after_so_many_epochs(tmp_path, states):
    """Of those that a replica trained, and of its initial values; taking them changes no number."""
    replicas = [WILD, SLOW, FAST]
    none = fit(replicas, tmp_path / "none", **STOPPING, keep_weights="official")
    result = fit(replicas, tmp_path / "kept", **STOPPING, keep_weights="official", snapshots=[0, 2, 7])
    assert equal(none, result)
    population = Population(build_model, [seed for _, seed in replicas])
    for number, weights in enumerate(result.weights):
        trained = (result.metrics["replica"] == number).sum()
        assert {name for name in weights if name != "official"} == {f"epoch-{n}" for n in (0, 2, 7) if n <= trained}
        same(weights["epoch-0"], model_state(population, [population.learned()[0][number]]))
        for done in (2, 7):
            if done <= trained:
                same(weights[f"epoch-{done}"], model_state(population, [states[number, done - 1]]))
    assert [len(weights) for weights in result.weights] == [1, 4, 3]


def test_a_snapshot_behind_the_end_is_refused(tmp_path):
    """How many epochs there are, the data say."""
    with pytest.raises(ValueError, match=r"snapshots has \[9\], and this training has 2 epochs: trainer.eval_every"):
        fit([FAST], tmp_path, data=splits(train=64), epochs=1, batch_size=16, eval_every=2, snapshots=[0, 2, 9])


@pytest.mark.slow
def test_an_interrupted_training_keeps_the_same_weights(tmp_path):
    """It fails in its sixth epoch, when one replica has diverged, and one has left with its best epoch behind it."""
    replicas, settings = [FAST, SLOW, WILD], STOPPING | {"checkpoint_every": 0, "keep_weights": "both"}
    settings |= {"snapshots": [0, 2, 6]}
    resumed, steps = interrupted(replicas, tmp_path / "broken", 28, **settings)
    assert resumed.notes == [] and steps < 28 + 5 * 7  # it did not begin anew
    unbroken = fit(replicas, tmp_path / "unbroken", **settings)
    assert unbroken.replicas[0]["official_epoch"] < 5 and "epoch-6" in unbroken.weights[1]
    same(resumed.weights, unbroken.weights)


on_gpu = {"accelerator": "gpu", "precision": "bf16"}


@pytest.mark.gpu
def test_captured_steps_train_the_same_with_weights_kept(tmp_path):
    replicas = [WILD, SLOW, FAST]
    none, both = (fit(replicas, tmp_path / k, **STOPPING | on_gpu, keep_weights=k) for k in ("none", "both"))
    assert none.notes == both.notes == []  # all steps were captured
    assert equal(none, both)
    plain = fit(replicas, tmp_path / "plain", **STOPPING | on_gpu, keep_weights="both", cuda_graph=False)
    assert plain.replicas == both.replicas
    same(both.weights, plain.weights)
