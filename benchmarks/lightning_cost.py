"""The overhead of Lightning: an epoch under its Trainer against a bare loop over the same captured steps.

    python -m mixerlab.benchmarks.lightning_cost [--mixers attn mesa] [--task icr]

Both train three replicas, score val and test in each epoch, and wait for the GPU once per epoch. The Trainer's epoch
also keeps the history and the checkpoint to resume from. The time of an epoch is the difference between a long and a
short run, divided by their difference in epochs, so that start-up is not included. The two ways alternate several
times; the medians are printed.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import lightning as L
import torch

from mixerlab.api import compose
from mixerlab.building import build_model, component
from mixerlab.config.settings import build_task
from mixerlab.tasks.data import load_or_generate
from mixerlab.training.capture import Captured
from mixerlab.training.datamodule import PopulationData
from mixerlab.training.fit import train
from mixerlab.training.metrics import Scores
from mixerlab.training.optimizers import PopulationOptimizer
from mixerlab.training.population import Population
from mixerlab.training.schedules import Schedule
from mixerlab.training.steps import PopulationSteps
from mixerlab.training.trainer_config import TrainerConfig

SHORT, LONG, ROUNDS = 2, 12, 3
REPLICAS = [(5e-3, 0), (1e-3, 0), (5e-4, 0)]


class Case:
    """One mixer on one task: the same training with the Trainer and without it."""

    def __init__(self, mixer: str, task: str):
        self.cfg = compose(f"mixer={mixer}", f"task={task}")
        self.task = build_task(self.cfg.task)
        self.splits = load_or_generate(self.task, None)
        self.schedule = component(self.cfg.schedule)
        self.build = partial(build_model, self.cfg, self.task)

    def optimizer(
        self, population: Population, lr: Sequence[float], schedule: Schedule, total_steps: int
    ) -> PopulationOptimizer:
        return component(self.cfg.optimizer, population=population, lr=lr, schedule=schedule, total_steps=total_steps)

    def with_lightning(self, epochs: int) -> None:
        settings = {**self.cfg.trainer, "epochs": epochs, "stop_when_perfect": False, "progress": False}
        with tempfile.TemporaryDirectory() as folder:
            config = TrainerConfig(**settings)
            train(
                REPLICAS,
                build_model=self.build,
                splits=self.splits,
                make_optimizer=self.optimizer,
                schedule=self.schedule,
                config=config,
                folder=Path(folder),
            )

    def bare(self, epochs: int) -> None:
        device = torch.device("cuda")
        rates, seeds = zip(*REPLICAS, strict=True)
        population = Population(self.build, seeds).to(device)
        data = PopulationData(self.splits, seeds, self.cfg.trainer.batch_size)
        trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=device), current_epoch=0)
        data.trainer = cast(L.Trainer, trainer)
        data.setup("fit")
        optimizer = self.optimizer(population, rates, self.schedule, epochs * data.steps_per_epoch)
        steps = PopulationSteps(population, optimizer, data.examples, bf16=True)
        rows = next(iter(data.train_dataloader())).rows[0]
        step, score = (Captured(function, steps.written_tensors(), rows) for function in (steps.train, steps.score))
        for epoch in range(epochs):
            trainer.current_epoch = epoch
            loss = torch.zeros(len(REPLICAS), device=device)
            for group in data.train_dataloader():
                for rows in group.rows:
                    loss += step(rows)
            means = [loss]
            for split in data.val_dataloader():
                scores = Scores.zeros(len(REPLICAS), device)
                for group in split:
                    for rows in group.rows:
                        scores.add(score(rows))
                means += scores.means().values()
            torch.stack(means).tolist()


def epoch_seconds(train_for: Callable[[int], None]) -> float:
    def seconds(epochs: int) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        train_for(epochs)
        torch.cuda.synchronize()
        return time.perf_counter() - started

    return (seconds(LONG) - seconds(SHORT)) / (LONG - SHORT)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m mixerlab.benchmarks.lightning_cost", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--mixers", nargs="+", default=["attn", "mesa"])
    parser.add_argument("--task", default="icr")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    print("mixer     bare loop ms/epoch  Lightning ms/epoch     overhead")
    for mixer in given.mixers:
        case = Case(mixer, given.task)
        case.bare(1)  # compiles
        pairs = [(epoch_seconds(case.bare), epoch_seconds(case.with_lightning)) for _ in range(ROUNDS)]
        bare, lightning = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
        print(f"{mixer:<9} {bare:18.1f} {lightning:19.1f} {lightning / bare - 1:15.1%}", flush=True)


if __name__ == "__main__":
    main()
