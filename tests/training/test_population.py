"""A run trains a population: the results of a replica do not depend on the other replicas."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_training import THREE, assert_same_results, build_model, fit, interrupted, replica_results, splits

from mixerlab.training import lit_module
from mixerlab.training.datamodule import PopulationData
from mixerlab.training.metrics import IGNORE_INDEX
from mixerlab.training.optimizers import AdamW, Muon
from mixerlab.training.population import Population
from mixerlab.training.schedules import WSD, Cosine

WILD, SLOW, FAST = (1e30, 1), (1e-5, 0), (2e-2, 0)  # diverges in its first epoch, learns nothing, becomes perfect


@pytest.mark.parametrize(
    ("optimizer", "schedule"), [(Muon, WSD()), pytest.param(AdamW, Cosine(), marks=pytest.mark.slow)]
)
def test_three_together_equal_three_alone(tmp_path, optimizer, schedule):
    together = fit(THREE, tmp_path, optimizer=optimizer, schedule=schedule)
    for number, replica in enumerate(THREE):
        alone = fit([replica], tmp_path, optimizer=optimizer, schedule=schedule)
        assert_same_results(replica_results(together, number), replica_results(alone, 0))
    assert len({summary["train_loss"] for summary in together.replicas}) == 3


def test_a_batch_without_targets_is_no_loss_of_zero(tmp_path):
    """All rows that are scored are in one batch of training, whose loss is that of the same rows in `val`."""
    inputs, targets = splits(train=40)["train"]
    targets[:-1] = IGNORE_INDEX
    data = dict.fromkeys(("train", "val", "test"), (inputs, targets))
    for summary in fit([(1e-30, 0), (1e-30, 5)], tmp_path, data=data).replicas:
        assert summary["train_loss"] == pytest.approx(summary["val_loss"], rel=1e-5) and summary["val_loss"] > 1


def test_training_equals_a_plain_loop(tmp_path):
    """One model with torch's AdamW and clipping, and short batches without padding, gives the same losses."""
    data = splits(train=5, val=3, test=11, learnable=False)  # 5 rows are one short batch of 8, 11 are 8 + 3
    options = {"weight_decay": 0.3, "max_grad_norm": 0.2}
    result = fit([(1e-2, 7)], tmp_path, data=data, optimizer=AdamW, options=options, epochs=6, batch_size=8)

    torch.manual_seed(7)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.3)
    tensors = {name: tuple(map(torch.from_numpy, arrays)) for name, arrays in data.items()}

    def loss_of(inputs, targets):
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX)

    for _, row in result.metrics.iterrows():
        loss = loss_of(*tensors["train"])
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        assert norm > 0.2  # otherwise this would not test clipping
        optimizer.step()
        assert math.isclose(row["train_loss"], loss.item(), rel_tol=1e-4)
        with torch.no_grad():
            losses = [
                loss_of(inputs, targets).item() * len(inputs)
                for inputs, targets in zip(*(t.split(8) for t in tensors["test"]), strict=True)
            ]
        assert math.isclose(row["test_loss"], sum(losses) / 11, rel_tol=1e-4)


def test_a_task_that_scores_nothing_is_refused():
    data = splits()
    data["val"] = data["val"][0], np.full_like(data["val"][1], IGNORE_INDEX)
    with pytest.raises(ValueError, match="no row of val has a target"):
        PopulationData(data, [0], batch_size=16)


def build_alike():
    torch.manual_seed(0)
    return build_model()


def test_seed_and_epoch_order_the_rows_and_each_is_shown_once(tmp_path, monkeypatch):
    seen, forward = [], Population.forward

    def spy(self, tokens, scored):
        if torch.is_grad_enabled():
            seen.append(tokens)
        return forward(self, tokens, scored)

    monkeypatch.setattr(Population, "forward", spy)
    result = fit([(1e-2, 3), (1e-2, 3), (1e-2, 4)], tmp_path, data=splits(train=32), build=build_alike, epochs=2)
    first, second = (torch.cat(seen[start : start + 2], dim=1) for start in (0, 2))
    assert torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])
    assert not torch.equal(first[0], second[0])
    rows = {tuple(sorted(map(tuple, epoch.tolist()))) for epoch in (*first, *second)}
    assert rows == {tuple(sorted(map(tuple, splits(train=32)["train"][0].tolist())))}
    same, again, other = (row["train_loss"] for row in result.replicas)
    assert same == again and same != other


def test_a_diverged_replica_is_frozen_and_does_not_affect_the_others(tmp_path):
    with_it, without = fit([THREE[0], WILD, THREE[2]], tmp_path), fit([THREE[0], THREE[2]], tmp_path)
    for one, other in ((0, 0), (2, 1)):
        assert_same_results(replica_results(with_it, one), replica_results(without, other))
    summary, metrics = replica_results(with_it, 1)
    assert [row["status"] for row in with_it.replicas] == ["finished", "diverged", "finished"]
    assert summary["error"] == f"the gradient was not finite in step {summary['steps'] + 1}"
    assert summary["steps"] == metrics["step"].iloc[-1] < 5
    assert len(metrics) == 1  # later epochs are not part of its results


def poisoned():
    model = build_model()
    if torch.initial_seed() == 1:
        model.blocks[0].mlp.w1.weight.data[0, 0] = math.nan
    return model


def test_a_replica_without_one_good_step_is_recorded(tmp_path):
    result = fit([(1e-2, 0), (1e-2, 1)], tmp_path, build=poisoned)
    assert_same_results(replica_results(result, 0), replica_results(fit([(1e-2, 0)], tmp_path), 0))
    summary, metrics = replica_results(result, 1)
    assert (summary["status"], summary["steps"]) == ("diverged", 0)
    # What a NaN predicts says nothing.
    assert all(summary[f"{split}_{name}"] is None for split in ("val", "test") for name in ("loss", "accuracy"))
    assert metrics[["val_accuracy", "test_token_accuracy"]].isna().all(axis=None)


def test_a_replica_that_diverged_in_its_last_step_is_recorded(tmp_path):
    result = fit([(1e-2, 0), (1e39, 1)], tmp_path, epochs=1, batch_size=70)
    assert [row["status"] for row in result.replicas] == ["finished", "diverged"]
    assert result.replicas[1]["error"] == "the loss was not finite after step 1"
    assert result.replicas[1]["official_accuracy"] is None and result.replicas[1]["clean_epoch"] is None


def test_a_run_ends_when_all_its_replicas_diverged(tmp_path):
    result = fit([(1e30, 0), (1e30, 1)], tmp_path, epochs=50)
    assert set(result.metrics["epoch"]) == {0}


def test_a_perfect_replica_is_frozen_whatever_the_others_do(tmp_path):
    settings = {"data": splits(), "epochs": 8}
    together = fit([FAST, SLOW], tmp_path, stop_when_perfect=True, **settings)
    alone = fit([FAST], tmp_path, stop_when_perfect=True, **settings)
    assert_same_results(replica_results(together, 0), replica_results(alone, 0))

    summary, metrics = replica_results(together, 0)
    assert summary["status"] == "finished" and summary["test_accuracy"] == summary["val_accuracy"] == 1
    assert len(metrics) < 8 and summary["steps"] == metrics["step"].iloc[-1]
    assert not (metrics["test_accuracy"].iloc[:-1] == 1).all()
    assert len(replica_results(together, 1)[1]) == 8  # the slow one keeps training
    assert len(fit([FAST], tmp_path, **settings).metrics) == 8


def test_a_population_goes_on_without_the_replicas_that_have_stopped(tmp_path, monkeypatch):
    """It does so two epochs later, because the host reads an epoch while the next one runs."""
    sizes, forward = [], Population.forward
    monkeypatch.setattr(Population, "forward", lambda self, *args: sizes.append(len(self)) or forward(self, *args))
    result = fit([WILD, SLOW, FAST], tmp_path, data=splits(), epochs=9, stop_when_perfect=True)
    own = [len(replica_results(result, replica)[1]) for replica in range(3)]
    assert own[0] == 1 and own[1] == 9 and 1 < own[2] < 7
    steps = 5 + 2 + 2  # an epoch's: training, val, test
    assert sizes == [3] * (2 * steps) + [2] * (own[2] - 1) * steps + [1] * (8 - own[2]) * steps


def test_a_replica_stops_only_at_an_epoch_that_both_selections_take(tmp_path, monkeypatch):
    """Not where val is not perfect, nor where an earlier epoch has its perplexity on val but a lower accuracy on test.

    The earlier epoch counts also if the training was interrupted behind it.
    """
    # Accuracy and perplexity on val, and on test.
    epochs = [(0.9, 1.7, 1, 1.7), (1, 1.5, 0.9, 1.6), (1, 1.5, 1, 1.4), (1, 1.4, 1, 1.3), (1, 1.0, 1, 1.0)]
    measured = iter(split for epoch in epochs for split in (epoch[:2], epoch[2:]))

    def means(sums):
        accuracy, perplexity = next(measured)
        values = {"accuracy": accuracy, "token_accuracy": accuracy, "loss": 1, "perplexity": perplexity}
        return {name: torch.full((1,), float(value)) for name, value in values.items()}

    monkeypatch.setattr(lit_module, "means_of", means)
    result, _ = interrupted([(1e-3, 0)], tmp_path, 12, stop_when_perfect=True, checkpoint_every=0, epochs=5)
    (summary,) = result.replicas
    assert summary["official_epoch"] == summary["clean_epoch"] == 3 and summary["steps"] == 4 * 5


def test_a_replica_stops_above_an_accuracy_on_test(tmp_path):
    """mad-lab's rule: the first epoch above that accuracy is the last one."""
    accuracies = fit([(0.02, 0)], tmp_path, epochs=6).metrics["test_accuracy"]
    first = int((accuracies > accuracies.iloc[0]).idxmax())
    stopped = fit([(0.02, 0)], tmp_path, epochs=6, stop_above=float(accuracies.iloc[:first].max())).metrics
    assert first > 0 and stopped["test_accuracy"].tolist() == accuracies.iloc[: first + 1].tolist()


def test_results_select_the_epoch_of_the_lowest_perplexity(tmp_path):
    """`official` selects by test, `clean` by val. On random targets, an overfitting model is best early."""
    summary, metrics = replica_results(fit([(2e-2, 1)], tmp_path, data=splits(train=32, learnable=False), epochs=8), 0)
    best_test, best_val = metrics["test_loss"].idxmin(), metrics["val_loss"].idxmin()
    assert best_test != best_val and max(best_test, best_val) < 7
    assert summary["official_accuracy"] == metrics["test_accuracy"][best_test]
    assert summary["clean_accuracy"] == metrics["test_accuracy"][best_val]
    assert summary["clean_val_accuracy"] == metrics["val_accuracy"][best_val]
    assert (summary["official_epoch"], summary["clean_epoch"]) == (best_test, best_val)
    assert summary["test_loss"] == metrics["test_loss"].iloc[-1]
