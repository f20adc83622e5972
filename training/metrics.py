"""mad-lab's metric for a population: the macro accuracy of each batch, averaged. Token accuracy is measured too."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mixerlab.kernels.fused.cross_entropy import IGNORE_INDEX, cross_entropy


@torch.no_grad()
def class_counts(logits: Tensor, targets: Tensor) -> Tensor:
    """How often each class is the target, the prediction, and both, over positions with a target: int32 `[R, 3, V]`.

    A prediction is the class of the largest logit; of several equal ones it is the first.

    Args:
        logits: `[R, ..., V]`.
        targets: int64 `[R, ...]`, from 0 to V - 1, or -100 for a position without a target.
    """
    targets, logits = targets.flatten(1), logits.flatten(1, -2)
    scored = targets != IGNORE_INDEX
    wanted = targets.where(scored, 0)
    predicted = logits.argmax(dim=2).where(scored, 0)
    counted = (wanted, scored), (predicted, scored), (wanted, scored & (wanted == predicted))
    empty = torch.zeros(len(logits), logits.shape[2], dtype=torch.int32, device=logits.device)
    return torch.stack([empty.scatter_add(1, classes, which.int()) for classes, which in counted], dim=1)


def macro_accuracy(counts: Tensor) -> Tensor:
    """Mean recall over the classes that occur as target or prediction: float32 `[R]` from `class_counts` `[R, 3, V]`.

    A class that is predicted but never a target counts as recall 0, as in torchmetrics'
    MulticlassAccuracy(average="macro"). The result is 0 if nothing is scored.
    """
    wanted, predicted, right = counts.unbind(dim=1)
    recall = right / wanted.clamp(min=1)
    return recall.sum(dim=1) / ((wanted + predicted) > 0).sum(dim=1).clamp(min=1)


def batch_scores(logits: Tensor, targets: Tensor) -> Tensor:
    """What one batch adds to `Scores.sums`, float32 `[6, R]`, from `logits` `[R, B, S, V]` and `targets` `[R, B, S]`.

    Rows without a scored target are not counted.
    """
    rows = (targets != IGNORE_INDEX).any(dim=2).sum(dim=1).float()
    loss, count = cross_entropy(logits, targets)
    counts = class_counts(logits, targets)
    right = counts[:, 2].sum(dim=1).float()
    return torch.stack((macro_accuracy(counts) * rows, loss * rows, loss.exp() * rows, right, count, rows))


@dataclass
class Scores:
    """Sums over the batches of one split. A batch is weighted by its number of rows, as in mad-lab."""

    sums: Tensor  # [6, R]: macro accuracy, loss, perplexity, right tokens, scored tokens, rows

    @classmethod
    def zeros(cls, replicas: int, device: torch.device) -> "Scores":
        return cls(torch.zeros(6, replicas, device=device))

    def add(self, batch: Tensor) -> None:
        """Adds the `batch_scores` of one batch."""
        self.sums += batch

    def means(self) -> dict[str, Tensor]:
        """`accuracy` (macro), `token_accuracy`, `loss` (nats), `perplexity`, each float32 `[R]`."""
        macro, loss, perplexity, right, count, rows = self.sums
        return {
            "accuracy": macro / rows,
            "token_accuracy": right / count,
            "loss": loss / rows,
            "perplexity": perplexity / rows,
        }
