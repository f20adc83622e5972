"""mad-lab's metric, torchmetrics' macro accuracy of each batch, averaged over batches; and what results say of it."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torchmetrics.classification import MulticlassAccuracy

from mixerlab.records.schema import Score
from mixerlab.training.metrics import IGNORE_INDEX, batch_scores, class_counts, macro_accuracy, means_of, summarise

REPLICAS, ROWS, LENGTH, VOCAB = 3, 6, 9, 11


def random_batch(seed, rows=ROWS):
    generator = torch.Generator().manual_seed(seed)
    shape = (REPLICAS, rows, LENGTH)
    targets = torch.randint(VOCAB, shape, generator=generator)
    logits = torch.randn(*shape, VOCAB, generator=generator)
    logits += 3 * F.one_hot(targets, VOCAB) * (torch.rand(*shape, 1, generator=generator) < 0.5)
    scored = torch.rand(shape, generator=generator) < 0.6
    scored[..., -1] = True  # every row scores something, as in every MAD task
    return logits, torch.where(scored, targets, IGNORE_INDEX)


def test_counts_every_scored_position():
    """Of equal logits the first is the prediction; NaN and infinity, as of a replica that has diverged, predict too."""
    logits, targets = random_batch(0)
    logits[0, 0, :, [3, 7]] = 20.0
    logits[1, 0] = float("nan")
    logits[1, 1, :, 4] = float("inf")
    logits[2, 0] = float("-inf")
    expected = torch.zeros(REPLICAS, 3, VOCAB, dtype=torch.int32)
    for replica in range(REPLICAS):
        for row, target in zip(logits[replica].flatten(0, 1), targets[replica].flatten().tolist(), strict=True):
            if target != IGNORE_INDEX:
                broken = row.isnan().nonzero().flatten().tolist()  # the first NaN counts as the largest
                predicted = broken[0] if broken else row.tolist().index(row.max().item())
                expected[replica, 0, target] += 1
                expected[replica, 1, predicted] += 1
                expected[replica, 2, target] += predicted == target
    assert torch.equal(class_counts(logits, targets), expected)


def test_scores_average_over_batches_weighted_by_rows():
    """Two full batches and a short one, which is padded with unscored rows."""
    real = [random_batch(0), random_batch(1), random_batch(2, rows=2)]
    logits, targets = real[-1]
    filled = (
        torch.cat((logits, torch.randn(REPLICAS, ROWS - 2, LENGTH, VOCAB)), dim=1),
        torch.cat((targets, torch.full((REPLICAS, ROWS - 2, LENGTH), IGNORE_INDEX)), dim=1),
    )
    means = means_of(sum(batch_scores(logits, targets) for logits, targets in (*real[:-1], filled)))
    rows, accuracy_of = [len(targets[0]) for _, targets in real], MulticlassAccuracy(num_classes=VOCAB)
    for replica in range(REPLICAS):
        macro, loss, perplexity = [], [], []
        for logits, targets in real:
            kept = targets[replica] != IGNORE_INDEX
            macro.append(accuracy_of(logits[replica].argmax(-1)[kept], targets[replica][kept]).item())
            nll = F.cross_entropy(logits[replica].flatten(0, 1), targets[replica].flatten(), ignore_index=-100)
            loss.append(nll.item())
            perplexity.append(nll.exp().item())
        for name, values in (("accuracy", macro), ("loss", loss), ("perplexity", perplexity)):
            weighted = sum(value * weight for value, weight in zip(values, rows, strict=True)) / sum(rows)
            assert means[name][replica].item() == pytest.approx(weighted, rel=1e-5), name
        right = sum((x[replica].argmax(-1) == t[replica]).sum().item() for x, t in real)
        scored = sum((t[replica] != IGNORE_INDEX).sum().item() for _, t in real)
        assert means["token_accuracy"][replica].item() == pytest.approx(right / scored)


def test_a_batch_without_a_target_has_accuracy_0():
    counts = class_counts(torch.randn(1, 3, 4), torch.full((1, 3), IGNORE_INDEX))
    assert macro_accuracy(counts).item() == 0


def history(*accuracies, loss=1.0):
    epochs, perplexity = [], math.exp(loss) if loss < 700 else math.inf
    for number, value in enumerate(accuracies):
        measured = {"loss": loss, "perplexity": perplexity, "accuracy": value, "token_accuracy": value}
        scores = {f"{split}_{key}": [values] for split in ("val", "test") for key, values in measured.items()}
        state = {"epoch": number, "steps": [7 * (number + 1)], "active": [True], "diverged": [False]}
        epochs.append(scores | state | {"train_loss": [loss]})
    return epochs


def test_steps_to_a_test_accuracy_of_90_percent():
    assert summarise(history(0.2, float(np.float32(0.9)), 0.5), 0)["steps_to_90"] == 14
    assert summarise(history(0.2, 0.89), 0)["steps_to_90"] is None


def test_a_loss_whose_perplexity_overflows_is_a_divergence_only_where_that_is_the_score():
    summary = summarise(history(0.25, loss=1000.0), 0)
    assert summary["status"] == "finished" and summary["official_accuracy"] == summary["clean_accuracy"] == 0.25
    summary = summarise(history(0.25, loss=1000.0), 0, Score("perplexity", higher_is_better=False))
    assert (summary["status"], summary["error"]) == ("diverged", "the perplexity was not finite after step 7")
    assert summary["official_epoch"] is summary["clean_perplexity"] is None
