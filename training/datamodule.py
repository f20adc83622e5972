"""The data of one task on the device, handed out as row numbers: an epoch is a permutation, not a copy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import lightning as L
import numpy as np
import torch
from torch import Tensor

from training.metrics import IGNORE_INDEX

EVALUATED = ("val", "test")  # the order of the validation dataloaders


class Chunk(NamedTuple):
    """Consecutive batches of one split, for every replica.

    `inputs` and `targets` are the whole split, int64 `[N + 1, T]`; `rows` `[steps, R, B]` says which rows
    make each replica's batch at each step. Row N scores nothing: it fills the last batch of an epoch, so
    that all batches have one shape and the mean loss is that of a short batch.
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
        self.splits = {}
        for name, (inputs, targets) in self.arrays.items():
            inputs = np.concatenate([inputs, inputs[:1]])
            targets = np.concatenate([targets, np.full_like(targets[:1], IGNORE_INDEX)])
            self.splits[name] = (
                torch.from_numpy(inputs).to(device),
                torch.from_numpy(targets).to(device),
            )

    def _batches(self, order: Tensor) -> Tensor:
        """Row numbers `[R, N]` cut into batches `[steps, R, B]`, the last one filled up with row N."""
        replicas, rows = order.shape
        missing = self._steps(rows) * self.batch_size - rows
        order = torch.nn.functional.pad(order, (0, missing), value=rows)
        return order.view(replicas, -1, self.batch_size).transpose(0, 1)

    def _shuffled(self) -> Tensor:
        """This epoch's order: a function of each replica's seed and the epoch alone, drawn on the device."""
        inputs, _ = self.splits["train"]
        epoch = self.trainer.current_epoch
        generator = torch.Generator(inputs.device)
        orders = {
            seed: torch.randperm(
                len(inputs) - 1,
                generator=generator.manual_seed(_mixed(seed, epoch)),
                device=inputs.device,
            )
            for seed in dict.fromkeys(self.seeds)
        }
        return self._batches(torch.stack([orders[seed] for seed in self.seeds]))

    def _in_order(self, split: str) -> Tensor:
        inputs, _ = self.splits[split]
        order = torch.arange(len(inputs) - 1, device=inputs.device)
        return self._batches(order.expand(len(self.seeds), -1))

    def train_dataloader(self) -> _Chunks:
        return _Chunks(*self.splits["train"], self._shuffled, self.steps_per_epoch, self.steps_per_chunk)

    def val_dataloader(self) -> list[_Chunks]:
        return [
            _Chunks(
                *self.splits[split],
                lambda split=split: self._in_order(split),
                self._steps(len(self.arrays[split][0])),
                self.steps_per_chunk,
            )
            for split in EVALUATED
        ]
