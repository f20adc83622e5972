"""What a population reaches: mad-lab's metric, and from the history of all epochs the results of each replica.

The metric is the macro accuracy of each batch, averaged. Token accuracy, loss and perplexity are measured too. A task
may have a score of its own, which it makes of these means.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mixerlab.kernels.fused.cross_entropy import IGNORE_INDEX, cross_entropy
from mixerlab.records.errors import RefusedCode
from mixerlab.records.schema import ACCURACY, MEASURED, Score

# The selections, and the split that chooses the epoch: of the lowest `criterion`. `training.weights.KeptWeights`
# follows the same rule on the device.
CHOSEN_ON = {"official": "test", "clean": "val"}
# A test accuracy that recall reaches only after its jump. `sweeps.tables` has it too; here the hash of training's code
# covers it, as it decides a result.
SOLVED = 0.9

EVALUATED = ("val", "test")  # the order of the validation dataloaders
SUMS = 6  # of macro accuracy, loss, perplexity, right tokens, scored tokens, rows

History = Sequence[Mapping]  # PopulationTraining.history: one dict per epoch, with lists over replicas
ScoreFrom = Callable[[Mapping[str, Tensor], Any], Tensor]  # a task's: the score `[R]` from `means_of` a split


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
    """What one batch adds to the sums of its split, float32 `[SUMS, R]`.

    Of `logits` `[R, B, S, V]` and `targets` `[R, B, S]`. A batch is weighted by its number of rows, as in mad-lab. Rows
    without a scored target are not counted.
    """
    rows = (targets != IGNORE_INDEX).any(dim=2).sum(dim=1).float()
    loss, count = cross_entropy(logits, targets)
    counts = class_counts(logits, targets)
    right = counts[:, 2].sum(dim=1).float()
    return torch.stack((macro_accuracy(counts) * rows, loss * rows, loss.exp() * rows, right, count, rows))


def means_of(sums: Tensor) -> dict[str, Tensor]:
    """`accuracy` (macro), `token_accuracy`, `loss` (nats) and `perplexity`, each float32 `[R]`, of summed scores."""
    macro, loss, perplexity, right, count, rows = sums
    return {
        "accuracy": macro / rows,
        "token_accuracy": right / count,
        "loss": loss / rows,
        "perplexity": perplexity / rows,
    }


def with_score(
    means: Mapping[str, Tensor], split: str, score: Score, score_from: ScoreFrom | None
) -> dict[str, Tensor]:
    """`means_of` a split and the score, if it is none of them: NaN where the loss is not finite.

    Raises `RefusedCode` if what a task gives has not a value for each replica.
    """
    if score.name in means:
        return dict(means)
    assert score_from is not None, "a score of a task's own"
    found, loss = score_from(means, split), means["loss"]
    if not isinstance(found, Tensor) or found.shape != loss.shape:
        given = f"a tensor {list(found.shape)}" if isinstance(found, Tensor) else repr(found)
        must = f"a tensor {list(loss.shape)} like means['loss']"
        raise RefusedCode(f"{score.name}: score_from gives {given}, and must give {must}")
    return {**means, score.name: found.where(loss.isfinite(), math.nan)}


def check_scores(epoch: Mapping[str, Any], score: Score) -> None:
    """RefusedCode unless a task's own score is a number wherever the loss is; `epoch` is one of `History`."""
    for split in EVALUATED if score.name not in MEASURED else ():
        for loss, value in zip(epoch[f"{split}_loss"], epoch[f"{split}_{score.name}"], strict=True):
            if math.isfinite(loss) and not (math.isfinite(value) and (0 <= value <= 1 or not score.is_accuracy)):
                must = "a number from 0 to 1" if score.is_accuracy else "a finite number"
                raise RefusedCode(
                    f"{score.name}: score_from gives {value:g} on {split} after epoch {epoch['epoch'] + 1}, where the"
                    f" loss is {loss:g}, and must give {must}"
                )


def criterion(epoch: Mapping[str, Any], split: str, score: Score) -> Any:
    """What a selection takes the lowest of: mad-lab's, the perplexity, for accuracies; else the score, the better way.

    `epoch` has `{split}_{name}` of `with_score`, as tensors or numbers.
    """
    return epoch[f"{split}_perplexity"] if score.is_accuracy else -score.sign * epoch[f"{split}_{score.name}"]


def own_epochs(history: History, replica: int) -> list[dict]:
    """The epochs in which `replica` trained, as flat dicts; for a frozen replica up to the epoch that froze it.

    Later epochs exist only because other replicas went on, so they are not part of its result. Accuracies are NaN where
    the loss is not finite.
    """
    epochs = []
    for row in history:
        epoch = {name: value[replica] if isinstance(value, list) else value for name, value in row.items()}
        for split in EVALUATED:
            if not math.isfinite(epoch[f"{split}_loss"]):  # then the predictions are arbitrary
                epoch |= {f"{split}_accuracy": math.nan, f"{split}_token_accuracy": math.nan}
        epochs.append(epoch)
        if not row["active"][replica]:
            break
    return epochs


def summarise(history: History, replica: int, score: Score = ACCURACY) -> dict:
    """The results of one replica, as a record's row has them, but for what the model counts.

    `official`: the epoch of the lowest `criterion` on test, as mad-lab reports it. `clean`: the epoch of the lowest on
    validation, reported on test. Values that are not finite become None. So does the whole selection of a replica that
    diverged before it had an epoch of a finite one.
    """
    epochs = own_epochs(history, replica)
    last = epochs[-1]
    error = None
    if last["diverged"]:
        error = f"the gradient was not finite in step {last['steps'] + 1}"
    elif infinite := [
        name for name in ("loss", score.name) if not math.isfinite(last[f"val_{name}"] + last[f"test_{name}"])
    ]:
        error = f"the {infinite[0]} was not finite after step {last['steps']}"  # no gradient after it would show it
    results = {
        "status": "diverged" if error else "finished",
        "error": error,
        "steps": last["steps"],
        "train_loss": last["train_loss"],
        **{f"{split}_{name}": last[f"{split}_{name}"] for split in EVALUATED for name in ("loss", score.name)},
    }
    if score.is_accuracy:
        # rounded as `metrics.csv` has it: float32 0.9 is below 0.9
        solved = (epoch["steps"] for epoch in epochs if round(epoch[f"test_{score.name}"], 7) >= SOLVED)
        results["steps_to_90"] = next(solved, None)
    for selection, chosen_on in CHOSEN_ON.items():
        best = min(epochs, key=lambda epoch: finite_or(criterion(epoch, chosen_on, score), math.inf))
        if error and not math.isfinite(criterion(best, chosen_on, score)):  # no epoch can be selected
            best = dict.fromkeys(best)
        results[f"{selection}_epoch"] = best["epoch"]
        for name in (score.name, "token_accuracy", "loss"):
            results[f"{selection}_{name}"] = best[f"test_{name}"]
        if chosen_on == "val":
            results[f"clean_val_{score.name}"] = best[f"val_{score.name}"]
            results["clean_val_loss"] = best["val_loss"]
    return {name: finite_or(value, None) for name, value in results.items()}


def finite_or(value: Any, other: Any) -> Any:
    """The value, or the other if it is a float that is not finite."""
    return other if isinstance(value, float) and not math.isfinite(value) else value


def metrics_rows(
    history: History, replicas: Sequence[tuple[float, int]], score: Score, tokens_of: Callable[[int], int] | None
) -> Iterator[dict]:
    """The rows of `metrics.csv`, one per replica and epoch; `replicas` holds each replica's (lr, seed).

    With `tokens_of` so many steps, rows have the tokens that were trained on, and curves are drawn over them.
    """
    names = dict.fromkeys((*MEASURED, score.name))
    for replica, (lr, seed) in enumerate(replicas):
        for epoch in own_epochs(history, replica):
            yield {
                "epoch": epoch["epoch"],
                "step": epoch["steps"],
                **({} if tokens_of is None else {"token": tokens_of(epoch["steps"])}),
                "replica": replica,
                "lr": lr,
                "seed": seed,
                "lr_now": epoch["learning_rate"],
                "train_loss": epoch["train_loss"],
                **{f"{split}_{name}": epoch[f"{split}_{name}"] for split in EVALUATED for name in names},
            }
