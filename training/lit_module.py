"""The Lightning module: steps a population through groups of batches, scores it each epoch, keeps its history."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import lightning as L
import torch
from torch import Tensor, nn

from mixerlab.records.files import snapshot
from mixerlab.records.schema import Score
from mixerlab.training.capture import SharedMemory, Step, captured
from mixerlab.training.datamodule import BatchGroup
from mixerlab.training.metrics import (
    CHOSEN_ON,
    EVALUATED,
    IGNORE_INDEX,
    SUMS,
    ScoreFrom,
    check_scores,
    criterion,
    means_of,
    own_epochs,
    with_score,
)
from mixerlab.training.optimizers import PopulationOptimizer
from mixerlab.training.population import Population, is_ours
from mixerlab.training.steps import PopulationSteps
from mixerlab.training.trainer_config import TrainerConfig
from mixerlab.training.weights import KeptWeights, model_state


class _Epoch(NamedTuple):
    """An epoch's measurements, while they are copied to the host."""

    number: int
    replicas: list[int]
    names: tuple[str, ...]
    values: Tensor  # [names, replicas]
    arrived: torch.cuda.Event | None


class PopulationTraining(L.LightningModule):
    """Trains a population; after each epoch, scores val and test and adds a row to `history`.

    The host reads an epoch's row after the next epoch has begun, so that the device never waits for the host. When that
    next epoch ends, replicas that have stopped leave the population.

    `history` holds one dict per epoch: `epoch` and, as lists over all replicas, `learning_rate`, `train_loss`,
    `diverged`, `active` (still training after the epoch), `steps` (made so far) and
    `{val,test}_{accuracy,token_accuracy,loss,perplexity}`, and those of the score if it is another. Replicas that have
    left keep their last values.

    Args:
        make_optimizer: builds the optimizer once the population is on its device.
        captures: run each step as one CUDA graph. False: launch the operations one by one.
        series: each replica's name in the loggers.
    """

    diverged: Tensor  # bool [R]
    lowest: Tensor  # [len(EVALUATED), R]: the lowest perplexity of any epoch so far

    def __init__(
        self,
        population: Population,
        make_optimizer: Callable[[], PopulationOptimizer],
        config: TrainerConfig,
        *,
        captures: bool,
        score: Score,
        score_from: ScoreFrom | None,
        series: Sequence[str],
    ):
        super().__init__()
        # A step is one call of the optimizer on all replicas; a Lightning batch holds many steps.
        self.automatic_optimization = False
        self.population = population
        self.make_optimizer, self.config = make_optimizer, config
        self.captures, self.series = captures, series
        self.score, self.score_from = score, score_from
        self.history: list[dict] = []
        self.notes: list[str] = []  # of this run, for its record
        self.unread: _Epoch | None = None
        self.finished = False  # no replica is left to train
        self.steps: PopulationSteps | None = None  # for the replicas that are left
        self.memory: SharedMemory | None = None  # of the graphs
        self.ready: dict[str, Step] = {}
        replicas = len(population)
        self.register_buffer("diverged", torch.zeros(replicas, dtype=torch.bool))
        self.register_buffer("lowest", torch.full((len(EVALUATED), replicas), torch.inf))
        learned = population.learned()
        moments = (*config.selections_kept, *map(snapshot, config.snapshots))
        self.kept = nn.ModuleDict({moment: KeptWeights(learned) for moment in moments})

    def configure_optimizers(self) -> PopulationOptimizer:
        self.optimizer = self.make_optimizer()
        return self.optimizer

    def _step(self, kind: str, group: BatchGroup, rows: Tensor) -> Step:
        """The method `kind` of `PopulationSteps` on the group's examples, captured at its first use if it can be."""
        if self.steps is None:
            self.steps = PopulationSteps(
                self.population,
                self.optimizer,
                group.examples,
                bf16=self.config.bf16,
                accumulate=self.config.accumulate,
            )
        if kind not in self.ready:
            if kind == "train" and not self.optimizer.capturable:
                self.ready[kind] = self.steps.train_after(self._captured(self.steps, self.steps.backward, rows))
            else:
                self.ready[kind] = self._captured(self.steps, getattr(self.steps, kind), rows)
        return self.ready[kind]

    def _captured(self, steps: PopulationSteps, step: Step, rows: Tensor) -> Step:
        """`step` of `steps` as one CUDA graph for rows of this shape; unchanged if it is none, or capture fails."""
        if not self.captures:
            return step
        self.memory = self.memory or SharedMemory()
        ahead = is_ours(self.population.model)
        written, generators = steps.written_tensors(), self.population.generators
        step, reason = captured(step, written, rows, self.memory, generators, ahead)
        if reason is not None:
            self.notes.append(reason)
        return step

    def _forget_steps(self) -> None:
        """Drops the steps and their graphs: they are for replicas that have left, or training is over."""
        self.steps = None
        self.ready.clear()

    def teardown(self, stage: str) -> None:
        self._forget_steps()
        self.memory = None

    def on_train_epoch_start(self) -> None:
        self._drop_stopped()
        self.loss_sum = torch.zeros(len(self.population), device=self.device)
        self.scored_steps = torch.zeros(len(self.population), device=self.device)

    def _drop_stopped(self) -> None:
        """Removes the replicas that had stopped two epochs ago.

        Not one epoch ago: the last epoch may not have been read yet, and results must not depend on whether it has.
        """
        if self.current_epoch < 2:
            return
        active = self.history[self.current_epoch - 2]["active"]
        rows = [row for row, number in enumerate(self.population.replicas) if active[number]]
        if 0 < len(rows) < len(self.population):
            self._keep(rows)
            self.optimizer.keep(rows)
            self._forget_steps()

    def _keep(self, rows: list[int]) -> None:
        self.population.keep(rows)
        self.diverged, self.lowest = self.diverged[rows], self.lowest[:, rows]
        for kept in self._kept().values():
            kept.keep(self.population.replicas)

    def _rows(self, group: BatchGroup) -> Tensor:
        """The group's rows for the replicas that are left; what steps read of them is in place."""
        group.place()
        replicas = self.population.replicas
        return group.rows if len(replicas) == group.rows.shape[1] else group.rows[:, replicas]

    def training_step(self, group: BatchGroup, batch_idx: int) -> None:
        if not len(group.rows):  # the last epoch may be shorter than the others
            return
        batches = self._rows(group)
        step = self._step("train", group, batches[0])
        was_active = self.optimizer.active
        for rows in batches:
            self.loss_sum += step(rows)
        has_target = (group.examples.targets != IGNORE_INDEX).any(dim=1)
        self.scored_steps += has_target[batches].any(dim=2).sum(dim=0)  # of another batch the loss is no loss of 0
        self.diverged |= was_active & ~self.optimizer.active
        self.read_epoch()

    def on_validation_epoch_start(self) -> None:
        self.sums = torch.zeros(len(EVALUATED), SUMS, len(self.population), device=self.device)

    def validation_step(self, group: BatchGroup, batch_idx: int, dataloader_idx: int) -> None:
        if self.finished:
            return  # the host learned it only after this epoch had begun; this epoch gets no row
        batches = self._rows(group)
        step = self._step("score_apart" if group.is_apart else "score", group, batches[0])
        for rows in batches:
            self.sums[dataloader_idx] += step(rows)

    def on_validation_epoch_end(self) -> None:
        if self.finished:
            return
        optimizer = self.optimizer
        measured = {
            "learning_rate": optimizer.learning_rates(),
            "train_loss": self.loss_sum / self.scored_steps.clamp(min=1),
        }
        for split, sums in zip(EVALUATED, self.sums, strict=True):
            means = with_score(means_of(sums), split, self.score, self.score_from)
            measured |= {f"{split}_{name}": value for name, value in means.items()}
        perplexity = torch.stack([measured[f"{split}_perplexity"] for split in EVALUATED])
        if self.config.stop_when_perfect and self.score.is_accuracy:
            perfect = (measured["val_accuracy"] == 1) & (measured["test_accuracy"] == 1)
            # Both selections must take this epoch: an earlier one may have had lower perplexity at lower accuracy.
            optimizer.freeze(perfect & (perplexity < self.lowest).all(dim=0))
        if self.config.stop_above is not None:
            sign = self.score.sign
            optimizer.freeze(sign * measured[f"test_{self.score.name}"] > sign * self.config.stop_above)
        self.lowest = torch.fmin(self.lowest, perplexity)
        chosen_on = {name: criterion(measured, split, self.score) for name, split in CHOSEN_ON.items()}
        chosen_on[snapshot(self.current_epoch + 1)] = self.loss_sum  # of one epoch any is the lowest
        for moment, kept in self._kept().items():
            if moment in chosen_on:
                kept.update(self.current_epoch, chosen_on[moment], optimizer.active, self.population.learned())
        measured["steps"] = optimizer.steps_taken
        measured["diverged"] = self.diverged.float()
        measured["active"] = optimizer.active.float()
        values = torch.stack(list(measured.values())).to("cpu", non_blocking=True)
        arrived = None
        if self.device.type == "cuda":
            arrived = torch.cuda.Event()
            arrived.record()
        self.unread = _Epoch(self.current_epoch, self.population.replicas, tuple(measured), values, arrived)

    def read_epoch(self) -> None:
        """Appends the last epoch's measurements to the history. Only here does the host wait for the device."""
        if self.unread is None:
            return
        epoch, self.unread = self.unread, None
        if epoch.arrived is not None:
            epoch.arrived.synchronize()
        types = {"diverged": bool, "active": bool, "steps": int}
        row: dict[str, list] = {}
        for name, values in zip(epoch.names, epoch.values.tolist(), strict=True):
            row[name] = list(self.history[-1][name]) if self.history else [None] * len(values)
            for number, value in zip(epoch.replicas, values, strict=True):
                row[name][number] = types.get(name, float)(value)
        self.history.append({"epoch": epoch.number, **row})
        check_scores(self.history[-1], self.score)
        self._stop_if_finished()
        for logger in self.loggers:
            logger.log_metrics(self._for_loggers(row), step=max(row["steps"]))

    def _stop_if_finished(self) -> None:
        if self.history and not any(self.history[-1]["active"]):
            self.finished = self.trainer.should_stop = True

    def on_train_end(self) -> None:
        self.read_epoch()

    def weights(self, replica: int, results: Mapping) -> dict[str, dict[str, Tensor]]:
        """The state of a replica's model at the epoch of each selection that is kept, and by `snapshot`, where it is.

        `results` are what `training.metrics.summarise` makes of the history.
        """
        epochs = {name: results[f"{name}_epoch"] for name in CHOSEN_ON}
        epochs |= {snapshot(done): done - 1 for done in range(len(own_epochs(self.history, replica)) + 1)}
        found = {}
        for moment, kept in self._kept().items():
            if (epoch := epochs.get(moment)) is not None:
                assert kept.epoch[replica] == epoch  # the rule on the device is that of the history
                found[moment] = model_state(self.population, [learned[replica] for learned in kept.learned])
        return found

    def _kept(self) -> dict[str, KeptWeights]:
        return cast(dict[str, KeptWeights], dict(self.kept.items()))

    def _for_loggers(self, row: dict) -> dict[str, float]:
        return {
            f"{name}/{replica}": value
            for name, values in row.items()
            if name not in ("steps", "active")
            for replica, value in zip(self.series, values, strict=True)
        }

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        self.read_epoch()
        checkpoint["history"], checkpoint["replicas"] = self.history, self.population.replicas

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        self.history = checkpoint["history"]
        self._keep(checkpoint["replicas"])  # Lightning loads their parameters and optimizer state after this
        self._stop_if_finished()
