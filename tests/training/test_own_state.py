"""Buffers and random numbers are each replica's own: in training, in kept weights, and from a checkpoint on."""

import pytest
import torch
from stateful_mixers import Normed, NormedAndDropped, model_with
from tiny_training import THREE, VOCAB, assert_same_results, equal, fit, interrupted, replica_results
from torch import nn

from mixerlab.training.execution import choose_execution
from mixerlab.training.population import ALL, Population


@pytest.mark.parametrize(("execution", "momentum"), [("vmap", 0.1), ("loop", 0.1), ("loop", None)])
def test_statistics_are_those_of_a_model_by_itself(execution, momentum):
    tokens = torch.randint(VOCAB, (2, 3, 7))
    build = model_with(lambda: Normed(momentum))
    population = Population(build, (0, 1))
    choose_execution(population, execution, tokens, ALL, bf16=False)
    assert population.in_a_loop == (execution == "loop")
    names = {f"blocks.{block}.mixer.norm.{name}" for block in range(2) for name in nn.BatchNorm1d(1).state_dict()}
    assert set(population.buffers_by_replica) == {name for name in names if not name.endswith(("weight", "bias"))}
    for _ in range(2):
        population(tokens)
    population.model.eval()
    scores = population(tokens)
    for replica, seed in enumerate((0, 1)):
        torch.manual_seed(seed)
        model = build()
        for _ in range(2):
            model(tokens[replica])
        model.eval()
        for name, buffer in population.buffers_by_replica.items():
            torch.testing.assert_close(buffer[replica], model.state_dict()[name])
        torch.testing.assert_close(scores[replica], model(tokens[replica]))


def test_kept_weights_have_the_statistics_of_their_replica(tmp_path):
    options = {"build": model_with(Normed), "epochs": 2, "keep_weights": "official"}
    together, alone = fit(THREE[:2], tmp_path, **options), fit(THREE[1:2], tmp_path, **options)
    name = "blocks.1.mixer.norm.running_mean"
    first, second = (weights["official"][name] for weights in together.weights)
    torch.testing.assert_close(second, alone.weights[0]["official"][name], rtol=1e-4, atol=1e-6)
    assert (first - second).abs().max() > 1e-3


def test_kept_weights_are_of_an_epoch_before_the_replica_stopped(tmp_path):
    """Its statistics change as long as others train, and with them what it scores."""
    options = {"build": model_with(Normed), "epochs": 8, "stop_above": 0.1}
    kept = fit([(1e-2, 0), (1e-4, 1), (1e-2, 2)], tmp_path, **options, keep_weights="both")
    assert {results["steps"] < 40 for results in kept.replicas} == {True, False}
    assert all(weights.keys() == {"official", "clean"} for weights in kept.weights)


def test_a_loop_continues_with_its_random_numbers_and_buffers(tmp_path):
    """With a replica that leaves: it diverges in the first epoch, and is gone from the third one on."""
    replicas = [(1e30, 3), (1e-2, 0), (1e-3, 5)]
    options = {"build": model_with(NormedAndDropped), "epochs": 4, "checkpoint_every": 0}
    unbroken = fit(replicas, tmp_path / "unbroken", **options)
    resumed, steps = interrupted(replicas, tmp_path / "broken", 13, **options)  # in the third of four epochs
    assert steps == 13 + 10 and equal(resumed, unbroken)
    assert resumed.notes == unbroken.notes and "could not be restored" not in resumed.notes[0]
    alone = fit(replicas[2:], tmp_path / "alone", **options)
    assert_same_results(replica_results(unbroken, 2), replica_results(alone, 0))
