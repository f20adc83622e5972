"""Whether a model sees the future: what a run checks before it trains.

A mixer whose output at t depends on inputs after t can copy the answers of a language-model task: it trains without an
error and tops the table. Two sequences that differ from position t on must give the same outputs before t. That is
checked with the model, lengths, precision, device and kernels of the run, and with parameters moved away from their
initial values, because a gate that starts at zero hides what it lets through.

The sequences of a population differ from different positions on (`cuts`), so one pass looks at many of these, and a
model that mixes over the batch shows up as well. If no output depends on later tokens once all rows differ from the
same position on, it sees no future.
"""

import copy
import functools
import logging
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mixerlab.records.errors import RefusedCode
from mixerlab.training.execution import leaving_no_trace
from mixerlab.training.population import Population

log = logging.getLogger(__name__)

NOISE = 0.05  # standard deviation of what is added to each parameter, of the size of a linear weight at width 128
# Beyond these shares of the change from t on, a change before t is no rounding. A mixer that computes the right thing
# from all positions (a convolution by FFT) leaves about 1e-6 in float32, and flips last bits in bfloat16.
_ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2}
_SEED = 0
CUTS = 16  # positions that one pass tries, at most
ROWS = 16  # of each replica that are compared, at most
_MOST_LOGITS = 1 << 24  # of these rows, so that they fit in memory
_LONG, _ROWS_OF_LONG = 512, 8  # tokens, beyond which a replica has so many rows on a CPU: a pass takes time there
_LONGEST_CHUNK = 512  # tokens, of chunks whose edges are looked at

_known: dict[Hashable, "Leak | Undetermined | None"] = {}  # of this process: runs of a sweep share mixers and shapes


def is_rounding(change: float, later_change: float, dtype: torch.dtype) -> bool:
    """Whether outputs in `dtype` that change by `later_change` from t on may change by `change` through rounding."""
    return change <= _ROUNDING[dtype] * later_change


class Leak(NamedTuple):
    """How an output depends on a later input.

    Attributes:
        position: whose output changes.
        since: from this later position on, the tokens changed.
        replica: the one that shows it, counted from 0.
        change: the largest change of a logit at `position`.
        later_change: the largest change of any logit from `since` on.
        training: seen in training mode; in scoring mode there was none.
        between_rows: the tokens that changed are those of other rows of the batch, and no later ones matter.
    """

    position: int
    since: int
    replica: int
    change: float
    later_change: float
    training: bool
    between_rows: bool = False

    def __str__(self) -> str:
        mode = ", in training mode only" if self.training else ""
        if self.between_rows:
            return (
                f"rows of a batch influence each other: the logits of one at position {self.position} change by"
                f" {self.change:.2g} when the tokens of others from position {self.since} on change{mode}"
            )
        return (
            f"the logits at position {self.position} change by {self.change:.2g} when the tokens from position"
            f" {self.since} on change (those from there on change by {self.later_change:.2g}{mode})"
        )


class Undetermined:
    """It cannot be determined: the outputs are not finite at the start."""

    def __str__(self) -> str:
        return "the outputs are not finite at the start: whether they depend on later inputs cannot be determined"


class SeesFuture(RefusedCode):
    """A mixer sees the future, and model.may_see_future is false; the message says how."""


class MixesRows(RefusedCode):
    """Scored rows influence each other, so that a score depends on the batches; the message says how."""


@dataclass
class CausalityCheck:
    """Refuses a population that sees the future, or mixes the rows that it scores.

    A process looks once for all runs of the same `key`.

    Attributes:
        name: the mixer's, for the message.
        vocab_size: of the task: token ids are below it.
        lengths: of the rows that train, and then of those that are only scored, if that is another one.
        may_see_future: note what it sees, in place of refusing it.
        key: must say all of the model. Precision, device and how replicas compute are added.
        found: a leak, or that nothing can be told; None before the check, and if nothing was found.
        found_at: the length of the rows in which that was.
    """

    name: str
    vocab_size: int
    lengths: tuple[int, ...]
    may_see_future: bool
    key: Hashable
    found: Leak | Undetermined | None = field(default=None, init=False)
    found_at: int = field(default=0, init=False)

    @property
    def sees_future(self) -> bool | None:
        """Of a population that was checked; None if it cannot be determined."""
        if isinstance(self.found, Leak):
            return not self.found.between_rows
        return None if isinstance(self.found, Undetermined) else False

    @property
    def notes(self) -> list[str]:
        """What the record says of it."""
        return [] if self.found is None else [f"{self.found}{self._where}"]

    @property
    def _where(self) -> str:
        return "" if self.found_at == self.lengths[0] else f", in test rows of {self.found_at} tokens"

    def __call__(self, population: Population, bf16: bool, batch_size: int) -> None:
        """Raises SeesFuture or MixesRows; `population` is on its device, and stays as it is.

        `batch_size` is how many sequences of each replica a step of training has.
        """
        looks = [(self._look(population, length, bf16, batch_size), length) for length in self.lengths]
        self.found, self.found_at = max(looks, key=lambda look: _gravity(look[0]))
        if isinstance(self.found, Undetermined):
            log.warning("mixer=%s: %s", self.name, self.found)
        if not isinstance(self.found, Leak):
            return
        if self.found.between_rows:
            if not self.found.training:
                raise MixesRows(f"mixer={self.name}: {self.found}{self._where}. Compute each row of x by itself")
            log.warning("mixer=%s: %s", self.name, self.found)
        elif not self.may_see_future:
            raise SeesFuture(
                f"mixer={self.name} sees the future: {self.found}{self._where}. model.may_see_future=true trains it all"
                " the same, and tables mark it"
            )

    def _look(self, population: Population, length: int, bf16: bool, batch_size: int) -> Leak | Undetermined | None:
        """`find_leak` at this length, of this process."""
        scored_only = length != self.lengths[0]
        # With the shapes of training a GPU launches the same kernels, and compiles none for the check only. Longer rows
        # are fewer, so that they fit in memory.
        rows = max(2, min(batch_size, batch_size * self.lengths[0] // length)) if scored_only else batch_size
        batch = rows if population.device.type == "cuda" else rows_on_cpu(length)
        seen = compared(len(population), batch, length, self.vocab_size)
        key = self.key, self.vocab_size, length, scored_only, bf16, population.device, population.execution, seen
        if key not in _known:
            _known[key] = find_leak(population, self.vocab_size, length, batch, bf16=bf16, scored_only=scored_only)
        return _known[key]


def _gravity(found: Leak | Undetermined | None) -> int:
    """Which of two things that were found is told."""
    if isinstance(found, Leak):
        return (1 if found.training else 4) if found.between_rows else 3
    return 0 if found is None else 2


def find_leak(
    population: Population, vocab_size: int, length: int, batch: int = ROWS, *, bf16: bool, scored_only: bool = False
) -> Leak | Undetermined | None:
    """How the logits of a population depend on later tokens, or on those of other rows.

    Looks in scoring mode, and then, unless rows are `scored_only`, in training mode, where a norm over time or over the
    batch sees more. A change counts if it is no rounding: what changes in bfloat16 is looked at in float32 again. Costs
    two forward passes of `batch` sequences for each replica and mode. The population and the state of all random
    generators stay as they were.

    Returns:
        None if they do not, `Undetermined` if they are not finite.
    """
    if length < 2:
        return None
    was_training = population.model.training
    saved = copy.deepcopy(population.state_dict())
    try:
        with leaving_no_trace(population.device):
            is_told = True
            for training in (False,) if scored_only else (False, True):
                population.model.train(training)
                look = _Look(population, saved, (len(population), batch, length), vocab_size, training)
                leak = look(torch.bfloat16 if bf16 else torch.float32)
                if leak is not None:
                    return leak
                is_told &= look.is_finite
            return None if is_told else Undetermined()
    finally:
        population.load_state_dict(saved)
        population.model.train(was_training)


def rows_on_cpu(length: int) -> int:
    """How many rows each replica has on a CPU: a power of two, as batches are, for mixers that divide them."""
    return ROWS if length <= _LONG else _ROWS_OF_LONG


def compared(replicas: int, batch: int, length: int, vocab_size: int) -> tuple[int, int]:
    """How many rows of each replica are compared, so that their logits fit in memory; how many positions they try.

    The more rows of a replica are compared, the more ways show in which rows of a batch may influence each other.
    """
    rows = min(batch, ROWS, max(2, _MOST_LOGITS // (length * vocab_size)))
    return rows, min(CUTS, replicas * rows)


def cuts(length: int, number: int = CUTS) -> tuple[int, ...]:
    """Positions from which on tokens change, at most `number`: two `inside` of chunks, the others at their `edges`."""
    return tuple(dict.fromkeys((*inside(length), *edges(length, number))))[:number]


@functools.cache
def edges(length: int, number: int) -> tuple[int, ...]:
    """The second position, the last, and others at which chunks begin: a leak across an edge shows only there.

    They are edges of chunks, counted from the start, of as many lengths as can be. Powers of two count most, then short
    chunks.
    """
    found = list(dict.fromkeys((1, length - 1)))
    chunks = torch.arange(2, min(length, _LONGEST_CHUNK + 1))
    is_edge = torch.arange(min(length, 8 * _LONGEST_CHUNK))[:, None] % chunks == 0  # these are enough
    is_edge[0] = False
    weight = 1 / chunks + (chunks & (chunks - 1) == 0)
    while len(found) < number and weight.any():
        cut = (is_edge * weight).sum(dim=1).argmax()
        weight = weight.masked_fill(is_edge[cut], 0)
        found.append(int(cut))
    return tuple(found)


def inside(length: int) -> tuple[int, int]:
    """Two positions near a third and two thirds, of which one is inside of a chunk, wherever chunks begin.

    A mixer that sees the whole of its chunk leaks nothing at a position where a chunk begins. So both are off the edges
    of chunks of 16 n, the first is odd, and their distance is a prime: otherwise both would be edges of all chunks
    whose length divides it, if one is. It does not divide the first: chunks of that length, counted from the start of
    the sequence, have no edge at either.
    """
    one = max(1, min(length - 1, length // 3 | 1))
    if one % 16 in (1, 15) and one + 4 < length:
        one += 4
    near = 2 * length // 3
    later = [
        cut for cut in range(one, length) if _is_prime(cut - one) and one % (cut - one) and cut % 16 not in (0, 1, 15)
    ]
    return one, min(later, key=lambda cut: abs(cut - near), default=max(1, min(length - 1, near | 1)))


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


class _Look:
    """One mode's look at a population: logits of some tokens, and of the same with others from one of `cuts` on.

    The rows that are compared, of one replica and of another, have different cuts: replicas compute with the same code.
    Only if something changes before them, every row is cut at the same position.

    `is_finite` says of the last look whether they were finite; if not, that there is no leak means nothing.
    """

    def __init__(
        self, population: Population, saved: dict, shape: tuple[int, int, int], vocab_size: int, training: bool
    ):
        self.population, self.saved, self.training = population, saved, training
        self.device = population.device
        replicas, self.batch, self.length = shape
        self.rows, tried = compared(replicas, self.batch, self.length, vocab_size)
        self.cuts = cuts(self.length, tried)
        row = torch.arange(replicas)[:, None] * self.rows + torch.arange(self.batch)
        self.cut_of_row = torch.tensor(self.cuts)[row % len(self.cuts)]  # [R, B]
        generator = torch.Generator().manual_seed(_SEED)
        self.tokens = torch.randint(vocab_size, shape, generator=generator)
        # Another token at every position: none is the same by chance.
        steps = torch.randint(1, max(vocab_size, 2), self.tokens.shape, generator=generator)
        self.others = (self.tokens + steps) % vocab_size
        values = saved["parameters_by_replica"]
        self.noise = NOISE * torch.randn(values.shape, generator=generator).to(self.device)

    def __call__(self, dtype: torch.dtype) -> Leak | None:
        leak = self._leak(dtype, self.cut_of_row)
        if leak is None or self.batch == 1:
            return leak
        for cut in sorted(self.cuts, key=lambda cut: cut != leak.since):
            if (of_same := self._leak(dtype, torch.full_like(self.cut_of_row, cut))) is not None:
                return of_same
        others = min(cut for cut in self.cut_of_row[leak.replica].tolist() if cut != leak.since)
        return leak._replace(since=others, between_rows=True)

    def _leak(self, dtype: torch.dtype, cut_of_row: Tensor) -> Leak | None:
        """What changes before the cuts, `[R, B]`."""
        is_later = torch.arange(self.length) >= cut_of_row[..., None]  # [R, B, T]
        change = self._change(dtype, torch.where(is_later, self.others, self.tokens))
        is_later = is_later[:, : self.rows].to(self.device)
        before, later = change.masked_fill(is_later, 0), change[is_later].max().item()
        most = before.max().item()
        if most == 0:
            return None
        if is_rounding(most, later, dtype):
            return None if dtype == torch.float32 else self._leak(torch.float32, cut_of_row)
        replica, row, position = (int(index) for index in torch.unravel_index(before.argmax(), before.shape))
        return Leak(position, int(cut_of_row[replica, row]), replica, most, later, self.training)

    def _change(self, dtype: torch.dtype, changed: Tensor) -> Tensor:
        """The largest change of a logit at each position of the rows that are compared, `[R, rows, T]`."""
        for noise in (self.noise, torch.zeros_like(self.noise)):
            one, other = (self._logits(tokens, dtype, noise) for tokens in (self.tokens, changed))
            self.is_finite = bool(one.isfinite().all() and other.isfinite().all())
            if self.is_finite:
                break
        change = torch.where(one == other, 0, (one - other).abs()).masked_fill(one.isnan() & other.isnan(), 0)
        return change.nan_to_num(nan=torch.inf).amax(dim=-1)

    def _logits(self, tokens: Tensor, dtype: torch.dtype, noise: Tensor) -> Tensor:
        """Of the rows that are compared, float32 `[R, rows, T, V]`; random generators and buffers start as ever."""
        values = {"parameters_by_replica": self.saved["parameters_by_replica"] + noise}
        self.population.load_state_dict(copy.deepcopy(self.saved) | values)
        torch.manual_seed(_SEED)
        with (
            torch.set_grad_enabled(self.training),
            torch.autocast(self.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16),
        ):
            logits = self.population(tokens.to(self.device))[:, : self.rows].detach()
            return logits.to(torch.float32, copy=True)  # a view would keep the logits of the whole batch
