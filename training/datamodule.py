"""The data of one task on the device. Batches are row numbers, so an epoch is a permutation and copies no rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import lightning as L
import numpy as np
import torch
from torch import Tensor

from mixerlab.training.capture import room_for
from mixerlab.training.metrics import IGNORE_INDEX

EVALUATED = ("val", "test")  # the order of the validation dataloaders
STEPS_PER_GROUP = 50  # of a Lightning batch, to spread Lightning's overhead for each over many steps
LEAST_ROWS = 2**14  # smallest size of the example tensors: a MAD run has at most 15,360 rows


class Examples(NamedTuple):
    """Splits of one length T, on the device, in tensors of M rows, more than there are examples.

    All splits have the same length, except test rows of another length, which are `apart`. The surplus rows have no
    targets. The last of them pads the last batch of an epoch: all batches then have the same shape, and the mean loss
    of the last one is that of its examples.

    Attributes:
        inputs: int64 `[M, T]`.
        targets: int64 `[M, S]`, the targets of the S positions in `scored`.
        scored: the positions from the first to the last that has a target in any row.
        apart: the test rows, if they have another length; else None.
    """

    inputs: Tensor
    targets: Tensor
    scored: slice
    apart: "Examples | None" = None


class BatchGroup(NamedTuple):
    """Consecutive batches of one split, for every replica; one batch for Lightning.

    Attributes:
        examples: those of all splits, so that a graph captured for one split serves the others.
        rows: int64 `[steps, R, B]`, the rows of `examples` in each replica's batch at each step.
        is_apart: they are rows of `examples.apart` instead.
    """

    examples: Examples
    rows: Tensor
    is_apart: bool = False


def scored_positions(targets: np.ndarray) -> slice:
    """The positions from the first to the last that has a target in any row of `targets`, int64 `[N, T]`."""
    (positions,) = (targets != IGNORE_INDEX).any(axis=0).nonzero()
    return slice(int(positions[0]), int(positions[-1]) + 1)


def _filled(array: np.ndarray, row: np.ndarray, device: torch.device) -> Tensor:
    """`array`, padded at the end with copies of `row`."""
    tensor = torch.from_numpy(row).to(device).repeat(room_for(len(array) + 1, LEAST_ROWS), 1)
    tensor[: len(array)] = torch.from_numpy(array)
    return tensor


def _mixed(seed: int, epoch: int) -> int:
    """One seed from two numbers. It has 32 bits, because a CPU generator uses no more."""
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])


class _BatchGroups:
    """The batches of an epoch in groups; each iteration calls `make_rows()` for the rows `[steps, R, B]`."""

    def __init__(self, examples: Examples, make_rows: Callable[[], Tensor], steps: int, is_apart: bool):
        self.examples, self.make_rows, self.steps, self.is_apart = examples, make_rows, steps, is_apart

    def __len__(self) -> int:
        return -(-self.steps // STEPS_PER_GROUP)

    def __iter__(self) -> Iterator[BatchGroup]:
        for rows in self.make_rows().split(STEPS_PER_GROUP):
            yield BatchGroup(self.examples, rows, self.is_apart)


class PopulationData(L.LightningDataModule):
    """Train, val and test rows of one task, for one population.

    Args:
        splits: `train`, `val` and `test`, each `(inputs, targets)`, int64 `[N, T]`; test may have another T.
        seeds: each replica's seed. On one type of device it determines the order of that replica's training rows,
            independently of the other replicas.
        batch_size: rows per step and replica.

    Raises:
        ValueError: a split has no target.
    """

    def __init__(self, splits: Mapping[str, tuple[np.ndarray, np.ndarray]], seeds: Sequence[int], batch_size: int):
        super().__init__()
        for split, (_, targets) in splits.items():
            if (targets == IGNORE_INDEX).all():
                raise ValueError(f"no row of {split} has a target: all targets are {IGNORE_INDEX}, which is not scored")
        self.arrays, self.seeds = splits, tuple(seeds)
        # No split could fill a larger batch, and the padding would be computed for nothing.
        self.batch_size = min(batch_size, max(len(rows) for rows, _ in splits.values()))
        self.steps_per_epoch = self._steps(len(splits["train"][0]))

    def _steps(self, rows: int) -> int:
        return -(-rows // self.batch_size)

    def first_batch(self, device: torch.device) -> tuple[Tensor, slice]:
        """Inputs of the shape of a training step, int64 `[R, B, T]`, the same for all replicas; `Examples.scored`."""
        inputs, _ = self.arrays["train"]
        rows = torch.from_numpy(np.resize(inputs, (self.batch_size, inputs.shape[1]))).to(device)
        targets = np.concatenate([self.arrays[split][1] for split in self._alike])
        return rows.repeat(len(self.seeds), 1, 1), scored_positions(targets)

    def setup(self, stage: str) -> None:
        assert self.trainer is not None, "a Trainer calls this"
        device = self.trainer.strategy.root_device
        self.ranges: dict[str, range] = {}
        apart = self._put_on(device, ["test"]) if self._test_is_apart else None
        self.examples = self._put_on(device, self._alike)._replace(apart=apart)

    @property
    def _alike(self) -> list[str]:
        """The splits whose rows have the length of training rows."""
        return [split for split in self.arrays if split != "test" or not self._test_is_apart]

    @property
    def _test_is_apart(self) -> bool:
        return self.arrays["test"][0].shape[1] != self.arrays["train"][0].shape[1]

    def _put_on(self, device: torch.device, splits: Sequence[str]) -> Examples:
        """The rows of these splits, one after the other, and their `ranges`."""
        start = 0
        for split in splits:
            self.ranges[split] = range(start, start + len(self.arrays[split][0]))
            start = self.ranges[split].stop
        inputs, targets = (np.concatenate(parts) for parts in zip(*(self.arrays[s] for s in splits), strict=True))
        scored = scored_positions(targets)
        targets = targets[:, scored]
        unscored = np.full_like(targets[0], IGNORE_INDEX)
        return Examples(_filled(inputs, inputs[0], device), _filled(targets, unscored, device), scored)

    def _batches(self, order: Tensor, examples: Examples) -> Tensor:
        """Cuts row numbers `[R, rows]` into batches `[steps, R, B]`; pads the last batch with the last row of all."""
        replicas, rows = order.shape
        missing = self._steps(rows) * self.batch_size - rows
        order = torch.nn.functional.pad(order, (0, missing), value=len(examples.inputs) - 1)
        return order.view(replicas, -1, self.batch_size).transpose(0, 1)

    def _shuffled(self) -> Tensor:
        """This epoch's training batches, in an order drawn from each replica's seed and the epoch.

        A generator of the device draws it: a CPU and a GPU draw different orders.
        """
        assert self.trainer is not None, "a Trainer calls this"
        rows, device, epoch = self.ranges["train"], self.examples.inputs.device, self.trainer.current_epoch
        generator = torch.Generator(device)
        orders = {
            seed: torch.randperm(len(rows), generator=generator.manual_seed(_mixed(seed, epoch)), device=device)
            for seed in dict.fromkeys(self.seeds)
        }
        return self._batches(rows.start + torch.stack([orders[seed] for seed in self.seeds]), self.examples)

    def _in_order(self, split: str) -> Tensor:
        rows = self.ranges[split]
        apart = self.examples.apart if split == "test" else None
        order = torch.arange(rows.start, rows.stop, device=self.examples.inputs.device)
        return self._batches(order.expand(len(self.seeds), -1), apart or self.examples)

    def _batch_groups(self, split: str, make_rows: Callable[[], Tensor]) -> _BatchGroups:
        steps = self._steps(len(self.ranges[split]))
        is_apart = split == "test" and self._test_is_apart
        return _BatchGroups(self.examples, make_rows, steps, is_apart)

    def train_dataloader(self) -> _BatchGroups:
        return self._batch_groups("train", self._shuffled)

    def val_dataloader(self) -> list[_BatchGroups]:
        return [self._batch_groups(split, partial(self._in_order, split)) for split in EVALUATED]
