"""mad-lab's metric for a population: macro accuracy of each batch, averaged; and token accuracy beside it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.fused import cross_entropy
from kernels.fused.cross_entropy import IGNORE_INDEX


def macro_accuracy(predictions: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """Mean recall over the classes that occur among scored targets or predictions; float32 `[R]`.

    `predictions` and `targets` are int64 `[R, N]`. A class that is only predicted counts as recall 0: that
    is torchmetrics' MulticlassAccuracy(average="macro"). 0 where nothing is scored.
    """
    scored = targets != IGNORE_INDEX
    replicas = len(targets)
    # Two counts of size V, not a V x V table. Class `num_classes` collects what is not scored.
    target = torch.where(scored, targets, num_classes)
    predicted = torch.where(scored, predictions, num_classes)
    ones = torch.ones_like(target, dtype=torch.float32)
    empty = torch.zeros(replicas, num_classes + 1, device=targets.device)
    occurrences = empty.scatter_add(1, target, ones)[:, :-1]
    predictions_of_class = empty.scatter_add(1, predicted, ones)[:, :-1]
    correct = empty.scatter_add(1, target, (predicted == target).float())[:, :-1]
    present = (occurrences > 0) | (predictions_of_class > 0)
    recall = correct / occurrences.clamp(min=1)
    return recall.sum(dim=1) / present.sum(dim=1).clamp(min=1)


def batch_scores(logits: Tensor, targets: Tensor) -> Tensor:
    """One batch's share of `Scores.sums`, `[6, R]`: `logits` `[R, B, T, V]`, `targets` int64 `[R, B, T]`.

    Rows without a scored target do not count.
    """
    predictions = logits.argmax(dim=-1)
    scored = targets != IGNORE_INDEX
    rows = scored.any(dim=2).sum(dim=1).float()
    loss, count = cross_entropy(logits, targets)
    macro = macro_accuracy(predictions.flatten(1), targets.flatten(1), logits.shape[-1])
    correct = ((predictions == targets) & scored).sum(dim=(1, 2)).float()
    return torch.stack((macro * rows, loss * rows, loss.exp() * rows, correct, count, rows))


@dataclass
class Scores:
    """Sums over the batches of one split; a batch weighs as many as it has rows (mad-lab)."""

    sums: Tensor  # [6, R]: macro accuracy, loss, perplexity, correct tokens, scored tokens, rows

    @classmethod
    def zeros(cls, replicas: int, device: torch.device) -> "Scores":
        return cls(torch.zeros(6, replicas, device=device))

    def add(self, batch: Tensor) -> None:
        """Adds the `batch_scores` of one batch."""
        self.sums += batch

    def means(self) -> dict[str, Tensor]:
        """`accuracy` (macro), `token_accuracy`, `loss` (nats), `perplexity`, each float32 `[R]`."""
        macro, loss, perplexity, correct, count, rows = self.sums
        return {
            "accuracy": macro / rows,
            "token_accuracy": correct / count,
            "loss": loss / rows,
            "perplexity": perplexity / rows,
        }
