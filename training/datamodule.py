"""The data of one task on the device, handed out as row numbers: an epoch is a permutation, not a copy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import lightning as L
import numpy as np
import torch
from torch import Tensor

from training.metrics import IGNORE_INDEX

EVALUATED = ("val", "test")  # the order of the validation dataloaders


class Chunk(NamedTuple):
    """Consecutive batches of one split, for every replica.

    `inputs` and `targets` hold every split, int64 `[N + 1, T]`, so that what is captured for one of them serves
    another; `rows` `[steps, R, B]` says which rows make each replica's batch at each step. Row N scores nothing:
    it fills the last batch of an epoch, so that all batches have one shape and the mean loss is that of a short
    batch.
    """

    inputs: Tensor
    targets: Tensor
    rows: Tensor


def _mixed(seed: int, epoch: int) -> int:
    """One 32-bit seed of two numbers: a generator on the CPU looks at no more bits."""
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])


class _Chunks:
    """An epoch's chunks; `make_rows()` gives the rows `[steps, R, B]` anew at each iteration."""

    def __init__(self, inputs: Tensor, targets: Tensor, make_rows: Callable[[], Tensor], steps: int, size: int):
        self.inputs, self.targets, self.make_rows = inputs, targets, make_rows
        self.steps, self.size = steps, size

    def __len__(self) -> int:
        return -(-self.steps // self.size)

    def __iter__(self) -> Iterator[Chunk]:
        for rows in self.make_rows().split(self.size):
            yield Chunk(self.inputs, self.targets, rows)


class PopulationData(L.LightningDataModule):
    """Train, val and test rows of one task, for one population.

    Args:
        splits: `train`, `val` and `test`, each `(inputs, targets)`, int64 `[N, T]`.
        seeds: each replica's seed; it orders that replica's training rows, whatever its neighbours are.
        batch_size: rows a step.
        steps_per_chunk: batches that one Lightning batch carries, to spread Lightning's own cost a batch.
    """

    def __init__(
        self,
        splits: Mapping[str, tuple[np.ndarray, np.ndarray]],
        seeds: Sequence[int],
        batch_size: int,
        steps_per_chunk: int = 50,
    ):
        super().__init__()
        self.arrays, self.seeds = splits, tuple(seeds)
        self.batch_size, self.steps_per_chunk = batch_size, steps_per_chunk
        self.steps_per_epoch = self._steps(len(splits["train"][0]))

    def _steps(self, rows: int) -> int:
        return -(-rows // self.batch_size)

    def setup(self, stage: str) -> None:
        device = self.trainer.strategy.root_device
        inputs, targets = (np.concatenate(parts) for parts in zip(*self.arrays.values(), strict=True))
        inputs = np.concatenate([inputs, inputs[:1]])
        targets = np.concatenate([targets, np.full_like(targets[:1], IGNORE_INDEX)])
        self.inputs, self.targets = torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)
        self.ranges, start = {}, 0
        for split, (rows, _) in self.arrays.items():
            self.ranges[split] = range(start, start + len(rows))
            start += len(rows)

    def _batches(self, order: Tensor) -> Tensor:
        """Row numbers `[R, rows]` cut into batches `[steps, R, B]`, the last one filled up with row N."""
        replicas, rows = order.shape
        missing = self._steps(rows) * self.batch_size - rows
        order = torch.nn.functional.pad(order, (0, missing), value=len(self.inputs) - 1)
        return order.view(replicas, -1, self.batch_size).transpose(0, 1)

    def _shuffled(self) -> Tensor:
        """This epoch's order: a function of each replica's seed and the epoch alone, drawn on the device."""
        rows, device, epoch = self.ranges["train"], self.inputs.device, self.trainer.current_epoch
        generator = torch.Generator(device)
        orders = {
            seed: torch.randperm(len(rows), generator=generator.manual_seed(_mixed(seed, epoch)), device=device)
            for seed in dict.fromkeys(self.seeds)
        }
        return self._batches(rows.start + torch.stack([orders[seed] for seed in self.seeds]))

    def _in_order(self, split: str) -> Tensor:
        rows = self.ranges[split]
        order = torch.arange(rows.start, rows.stop, device=self.inputs.device)
        return self._batches(order.expand(len(self.seeds), -1))

    def _chunks(self, split: str, make_rows: Callable[[], Tensor]) -> _Chunks:
        steps = self._steps(len(self.ranges[split]))
        return _Chunks(self.inputs, self.targets, make_rows, steps, self.steps_per_chunk)

    def train_dataloader(self) -> _Chunks:
        return self._chunks("train", self._shuffled)

    def val_dataloader(self) -> list[_Chunks]:
        return [self._chunks(split, partial(self._in_order, split)) for split in EVALUATED]
