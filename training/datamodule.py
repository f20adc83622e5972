"""The data of one task on the device. Batches are row numbers, so an epoch is a permutation and copies no rows.

Splits that lie in a file, as memory maps, are not read at once: the rows of each group of batches are cut when they
are needed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import lightning as L
import numpy as np
import torch
from torch import Tensor

from mixerlab.training.metrics import EVALUATED, IGNORE_INDEX
from mixerlab.training.trainer_config import steps_of

# Of a Lightning batch, to spread Lightning's overhead. On a CPU, where steps are slow, a run soon says what it takes.
STEPS_PER_GROUP, STEPS_PER_GROUP_ON_CPU = 50, 10
_PADDING = 2**62  # number of no row of a file


class Examples(NamedTuple):
    """Splits of one length T, on the device, in tensors of M rows, one more than there are examples.

    All splits have the same length, except test rows of another length, which are `apart`. Of splits in a file they are
    the rows of one `BatchGroup`, the last that was placed. The last row has no targets. It pads the last batch of an
    epoch: all batches then have the same shape, and the mean loss of the last one is that of its examples.

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
        examples: those of all splits, so that the graph of a scoring step serves val and test.
        rows: int64 `[steps, R, B]`, the rows of `examples` in each replica's batch at each step.
        is_apart: they are rows of `examples.apart` instead.
        cut: of rows in a file the tensors of examples, and what `place` puts there first, int32.
    """

    examples: Examples
    rows: Tensor
    is_apart: bool = False
    cut: Sequence[tuple[Tensor, np.ndarray]] = ()

    def place(self) -> None:
        """Called before the steps of this group, and after those of the one before, whose rows it replaces."""
        for place, rows in self.cut:
            place[: len(rows)] = torch.from_numpy(rows).to(place.device)


class _BatchGroups:
    """The batches of an epoch in groups: those of a split, of which there are `steps`.

    Lightning wants the same number of groups in each epoch: in one of fewer than `steps`, the last ones are empty.
    """

    def __init__(self, data: "PopulationData", split: str, steps: int):
        self.data, self.split, self.steps = data, split, steps

    def __len__(self) -> int:
        return -(-self.steps // self.data.steps_per_group)

    def __iter__(self) -> Iterator[BatchGroup]:
        rows, size = self.data.batches(self.split), self.data.steps_per_group
        for number in range(len(self)):
            yield self.data.group(self.split, rows[number * size : (number + 1) * size])


class PopulationData(L.LightningDataModule):
    """Train, val and test rows of one task, for one population.

    Args:
        splits: `train`, `val` and `test`, each `(inputs, targets)`, int64 `[N, T]`; test may have another T. Or each of
            them memory maps of integers, with a target at every position.
        seeds: each replica's seed. On one type of device it determines the order of that replica's training rows,
            independently of the other replicas.
        batch_size: rows per step and replica.
        epochs: passes over the training rows.
        trained_rows: how many rows to train on in their place, or so many more that the last batch is full.
        eval_every: steps from one evaluation to the next; None: those of a pass.

    Attributes:
        steps_per_pass: over the training rows, each of which it takes once.
        steps_per_epoch: from one evaluation to the next, in the last epoch perhaps fewer.
        total_steps, epochs: of the whole training.
        together: the splits whose rows have the length of training rows: all, or all but test.

    Raises:
        ValueError: a split has no target.
    """

    def __init__(
        self,
        splits: Mapping[str, tuple[np.ndarray, np.ndarray]],
        seeds: Sequence[int],
        batch_size: int,
        epochs: int = 1,
        *,
        trained_rows: int | None = None,
        eval_every: int | None = None,
    ):
        super().__init__()
        self.in_file = isinstance(splits["train"][0], np.memmap)
        for split, (_, targets) in splits.items():
            if not self.in_file and (targets == IGNORE_INDEX).all():
                raise ValueError(f"no row of {split} has a target: all targets are {IGNORE_INDEX}, which is not scored")
        self.arrays, self.seeds = splits, tuple(seeds)
        # No split could fill a larger batch, and the padding would be computed for nothing.
        self.batch_size = min(batch_size, max(len(rows) for rows, _ in splits.values()))
        num_rows, length = splits["train"][0].shape
        self.together = [split for split, (inputs, _) in splits.items() if inputs.shape[1] == length]
        self.steps_per_pass = self._steps(num_rows)
        self.total_steps = steps_of(trained_rows or epochs * num_rows, num_rows, self.batch_size)
        self.steps_per_epoch = min(eval_every or self.steps_per_pass, self.total_steps)
        self.epochs = -(-self.total_steps // self.steps_per_epoch)

    def _steps(self, rows: int) -> int:
        return -(-rows // self.batch_size)

    def tokens_of(self, steps: int) -> int:
        """What a replica has trained on in its first steps; the last batch of a pass has fewer rows."""
        inputs, _ = self.arrays["train"]
        passes, more = divmod(steps, self.steps_per_pass)
        return (passes * len(inputs) + more * self.batch_size) * inputs.shape[1]

    def first_rows(self, number: int, device: torch.device) -> tuple[Tensor, slice]:
        """Inputs int64 `[R, number, T]`, the same for all replicas, to try a model with; `Examples.scored`."""
        inputs, _ = self.arrays["train"]
        rows = inputs[np.arange(number) % len(inputs)].astype(np.int64)
        return torch.from_numpy(rows).to(device).repeat(len(self.seeds), 1, 1), self._scored(self.together)

    def _scored(self, splits: Sequence[str]) -> slice:
        """The positions from the first to the last that has a target in any row of these splits."""
        if self.in_file:
            return slice(0, self.arrays[splits[0]][0].shape[1])
        targets = np.concatenate([self.arrays[split][1] for split in splits])
        (positions,) = (targets != IGNORE_INDEX).any(axis=0).nonzero()
        return slice(int(positions[0]), int(positions[-1]) + 1)

    def setup(self, stage: str) -> None:
        assert self.trainer is not None, "a Trainer calls this"
        device = self.trainer.strategy.root_device
        self.steps_per_group = STEPS_PER_GROUP_ON_CPU if device.type == "cpu" else STEPS_PER_GROUP
        self.order_device = torch.device("cpu") if self.in_file else device  # of rows in a file the host cuts them
        self.ranges: dict[str, range] = {}
        apart = None if "test" in self.together else self._put_on(device, ["test"])
        self.examples = self._put_on(device, self.together)._replace(apart=apart)

    def teardown(self, stage: str) -> None:
        # This object is in a cycle with the trainer, which may be collected long after the next run has begun.
        del self.examples

    def _put_on(self, device: torch.device, splits: Sequence[str]) -> Examples:
        """The rows of these splits, one after the other, and their `ranges`."""
        start = 0
        for split in splits:
            self.ranges[split] = range(start, start + len(self.arrays[split][0]))
            start = self.ranges[split].stop
        scored = self._scored(splits)
        if self.in_file:
            most = self.steps_per_group * self.batch_size * len(set(self.seeds))  # rows of a group
            shape = min(most, max(len(self.arrays[split][0]) for split in splits)) + 1, scored.stop
            empty = torch.zeros(shape, dtype=torch.int64, device=device)
            return Examples(empty, torch.full_like(empty, IGNORE_INDEX), scored)
        first, its_targets = (array[:1] for array in self.arrays[splits[0]])
        rows = [*(self.arrays[split] for split in splits), (first, np.full_like(its_targets, IGNORE_INDEX))]
        inputs, targets = (torch.from_numpy(np.concatenate(parts)).to(device) for parts in zip(*rows, strict=True))
        return Examples(inputs, targets[:, scored].contiguous(), scored)

    def _examples_of(self, split: str) -> Examples:
        apart = self.examples.apart
        return apart if split == "test" and apart is not None else self.examples

    def batches(self, split: str) -> Tensor:
        """The batches `[steps, R, B]` of this epoch: of training rows shuffled, of others in order."""
        if split == "train":
            return self._shuffled()
        rows = self.ranges[split]
        order = torch.arange(rows.start, rows.stop, device=self.order_device)
        return self._cut(order.expand(len(self.seeds), -1), self._examples_of(split))

    def _cut(self, order: Tensor, examples: Examples) -> Tensor:
        """Cuts row numbers `[R, rows]` into batches `[steps, R, B]`; pads the last batch with the last row of all."""
        replicas, rows = order.shape
        missing = self._steps(rows) * self.batch_size - rows
        padding = _PADDING if self.in_file else len(examples.inputs) - 1
        order = torch.nn.functional.pad(order, (0, missing), value=padding)
        return order.view(replicas, -1, self.batch_size).transpose(0, 1)

    def _shuffled(self) -> Tensor:
        """The training batches of this epoch: of one pass over the rows, or of several, one after the other."""
        assert self.trainer is not None, "a Trainer calls this"
        start, in_pass = self.trainer.current_epoch * self.steps_per_epoch, self.steps_per_pass
        stop = min(start + self.steps_per_epoch, self.total_steps)
        passes = range(start // in_pass, -(-stop // in_pass))
        return torch.cat([self._pass(number, start - number * in_pass, stop - number * in_pass) for number in passes])

    def _pass(self, number: int, start: int, stop: int) -> Tensor:
        """The batches of a pass from step `start` to `stop`, in an order drawn from each replica's seed and `number`.

        A generator of the device draws it: a CPU and a GPU draw different orders.
        """
        rows, device = self.ranges["train"], self.order_device
        steps = slice(max(start, 0) * self.batch_size, stop * self.batch_size)
        generator = torch.Generator(device)
        orders = {}
        for seed in dict.fromkeys(self.seeds):
            mixed = np.random.SeedSequence((seed, number)).generate_state(1)[0]  # 32 bits: a CPU generator has no more
            generator.manual_seed(int(mixed))
            orders[seed] = torch.randperm(len(rows), generator=generator, device=device)[steps]
        return self._cut(rows.start + torch.stack([orders[seed] for seed in self.seeds]), self.examples)

    def group(self, split: str, rows: Tensor) -> BatchGroup:
        """The group of these rows `[steps, R, B]` of a split; rows in a file are cut, each once."""
        examples = self._examples_of(split)
        is_apart = examples is not self.examples
        if not self.in_file:
            return BatchGroup(self.examples, rows, is_apart)
        numbers, places = rows.unique(return_inverse=True)
        places[rows == _PADDING] = len(examples.inputs) - 1
        chosen = numbers[numbers != _PADDING].numpy() - self.ranges[split].start
        inputs, targets = (array[chosen].astype(np.int32) for array in self.arrays[split])
        cut = (examples.inputs, inputs), (examples.targets, targets)
        return BatchGroup(self.examples, places.to(examples.inputs.device), is_apart, cut)

    def train_dataloader(self) -> _BatchGroups:
        return _BatchGroups(self, "train", self.steps_per_epoch)

    def val_dataloader(self) -> list[_BatchGroups]:
        return [_BatchGroups(self, split, self._steps(len(self.ranges[split]))) for split in EVALUATED]
