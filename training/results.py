"""Turns a population's history into results: each replica's own epochs, its two selections and its metrics rows."""

import math
from collections.abc import Iterator, Mapping, Sequence

# The selections, and the split whose lowest perplexity chooses the epoch. `training.weights.KeptWeights` follows the
# same rule on the device.
CHOSEN_ON = {"official": "test", "clean": "val"}
# A test accuracy that recall reaches only after its jump. `sweeps.solved` has it too; here the hash of training's
# code covers it, as it decides a result.
SOLVED = 0.9

History = Sequence[Mapping]  # PopulationTraining.history: one dict per epoch, with lists over replicas


def own_epochs(history: History, replica: int) -> list[dict]:
    """The epochs in which `replica` trained, as flat dicts; for a frozen replica up to the epoch that froze it.

    Later epochs exist only because other replicas went on, so they are not part of its result. Accuracies are NaN where
    the loss is not finite.
    """
    epochs = []
    for row in history:
        epoch = {name: value[replica] if isinstance(value, list) else value for name, value in row.items()}
        for split in ("val", "test"):
            if not math.isfinite(epoch[f"{split}_loss"]):  # then the predictions are arbitrary
                epoch |= {f"{split}_accuracy": math.nan, f"{split}_token_accuracy": math.nan}
        epochs.append(epoch)
        if not row["active"][replica]:
            break
    return epochs


def summarise(history: History, replica: int) -> dict:
    """The results of one replica: RESULTS and LATER_RESULTS of `sweeps.records.schema`, but for what the model counts.

    `official`: the epoch of the lowest test perplexity, as mad-lab reports it. `clean`: the epoch of the
    lowest validation perplexity, reported on test. Values that are not finite become None. So does the whole
    selection of a replica that diverged before it had an epoch of finite perplexity.
    """
    epochs = own_epochs(history, replica)
    last = epochs[-1]
    error = None
    if last["diverged"]:
        error = f"the gradient was not finite in step {last['steps'] + 1}"
    elif not math.isfinite(last["val_loss"] + last["test_loss"]):
        error = f"the loss was not finite after step {last['steps']}"  # the last step: no gradient would have shown it
    results = {
        "status": "diverged" if error else "finished",
        "error": error,
        "steps": last["steps"],
        "steps_to_90": next((epoch["steps"] for epoch in epochs if _is_solved(epoch["test_accuracy"])), None),
        "train_loss": last["train_loss"],
        **{f"{split}_{name}": last[f"{split}_{name}"] for split in ("val", "test") for name in ("loss", "accuracy")},
    }
    for selection, chosen_on in CHOSEN_ON.items():
        best = min(epochs, key=lambda epoch: _finite_or_last(epoch[f"{chosen_on}_perplexity"]))
        if error and not math.isfinite(best[f"{chosen_on}_perplexity"]):  # no epoch can be selected
            best = dict.fromkeys(best)
        results[f"{selection}_epoch"] = best["epoch"]
        for name in ("accuracy", "token_accuracy", "loss"):
            results[f"{selection}_{name}"] = best[f"test_{name}"]
        if chosen_on == "val":
            results["clean_val_accuracy"] = best["val_accuracy"]
            results["clean_val_loss"] = best["val_loss"]
    return {name: _finite_or_none(value) for name, value in results.items()}


def metrics_rows(history: History, replicas: Sequence[tuple[float, int]]) -> Iterator[dict]:
    """The rows of `metrics.csv`, one per replica and epoch; `replicas` holds each replica's (lr, seed)."""
    for replica, (lr, seed) in enumerate(replicas):
        for epoch in own_epochs(history, replica):
            yield {
                "epoch": epoch["epoch"],
                "step": epoch["steps"],
                "replica": replica,
                "lr": lr,
                "seed": seed,
                "lr_now": epoch["learning_rate"],
                "train_loss": epoch["train_loss"],
                **{
                    f"{split}_{name}": epoch[f"{split}_{name}"]
                    for split in ("val", "test")
                    for name in ("loss", "perplexity", "accuracy", "token_accuracy")
                },
            }


def _is_solved(accuracy: float) -> bool:
    """Whether a test accuracy is at least `SOLVED`, rounded as `metrics.csv` has it: float32 0.9 is below 0.9."""
    return round(accuracy, 7) >= SOLVED


def _finite_or_last(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _finite_or_none(value):
    return None if isinstance(value, float) and not math.isfinite(value) else value
