"""What the outputs of a model must not depend on: asked by `mixerlab check`, and by every run before it trains.

On later tokens: a mixer whose output at t depends on inputs after t can copy the answers of a language-model task, and
tops the table. On other rows, as scores then depend on the batches. On earlier calls, as a loaded model then gives
other outputs.

A population is called again from the same state, and outputs are compared: with the model, lengths, precision, device
and kernels of the run, and with noise in its parameters, because a gate that starts at zero hides what it lets through.
"""

import copy
import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from mixerlab.records.errors import RefusedMixer
from mixerlab.training.execution import leaving_no_trace
from mixerlab.training.population import Population, attributes_kept

log = logging.getLogger(__name__)

KEEPS_STATE = (
    "it gives different outputs for the same input: it keeps state between calls. Compute all of forward from x,"
    " parameters and buffers"
)
WRITES = (
    "it writes {} in evaluation mode, so that it gives different outputs for the same input: write buffers only if"
    " self.training"
)
SHORT = 8  # tokens of the rows of a whole batch on a CPU, so that they cost little
ROWS = 16  # of each replica that are compared, at most: a power of two, for mixers that divide the batch
_NOISE = 0.05  # standard deviation of what is added to each parameter: about that of a linear weight at width 128
# Beyond this share of the change from t on, a change before t is no rounding. A mixer that computes the right thing
# from all positions (a convolution by FFT) leaves about 1e-6 in float32, and flips last bits in bfloat16.
_ROUNDING, _ROUNDING_BF16 = 1e-4, 5e-2
_MOST_OUTPUTS = 1 << 24  # of the rows of a replica, so that they fit in memory
_EDGES = (60, 48, 84, 72, 88, 104, 100, 42, 40)  # positions where chunks of many lengths end


class Kind(Enum):
    """What outputs depend on, as a message says it."""

    FUTURE = "it sees the future"
    ROWS = "rows of a batch influence each other"
    UNKNOWN = "the outputs are not finite at the start: whether they depend on later inputs cannot be determined"


class Finding(NamedTuple):
    """Outputs depend on what they must not, when tokens from `since` on change; `training`: in training mode only."""

    kind: Kind
    training: bool
    since: int
    message: str


def find_leak(
    population: Population,
    vocab_size: int,
    length: int,
    batch: int = ROWS,
    *,
    bf16: bool = False,
    trains: bool = True,
    is_causal: bool = True,
) -> Finding | None:
    """How the outputs of a population depend on later tokens, or on those of other rows; None if they do not.

    Only on those of other rows, unless it `is_causal`, as an auto-encoder is not. Looks in evaluation mode and, if such
    rows train, in training mode, where a norm over time or over the batch sees more. What changes in bfloat16 by no
    more than its rounding is looked at in float32 again. The population and all random generators stay as they were.
    """
    if length < 2:
        return None
    found = None
    state, buffers = copy.deepcopy(population.state_dict()), population.buffers_by_replica
    was_training = population.model.training
    try:
        with leaving_no_trace(population.device):
            look = _Look(population, state, vocab_size, length, batch)
            for training in (False, True) if trains else (False,):
                population.model.train(training)
                if found is None or found.kind is Kind.UNKNOWN:
                    found = (look.finding(bf16) if is_causal else look.mixed_rows(bf16)) or found
    finally:
        population.buffers_by_replica = buffers
        population.load_state_dict(state)
        population.model.train(was_training)
    return found


class _Look:
    """Outputs of some tokens, and of the same with others from one of `cuts` on.

    Rows have different cuts, and so do replicas, which compute with the same code: one pass tries many, and rows that
    influence each other show as well.
    """

    def __init__(self, population: Population, state: dict[str, Any], vocab_size: int, length: int, batch: int):
        self.population, self.state = population, state
        self.rows = min(batch, ROWS, max(2, _MOST_OUTPUTS // (length * vocab_size)))
        # A mixer that sees the whole of its chunk leaks nothing where a chunk begins, and one that leaks across an edge
        # of two chunks leaks only there. So two cuts are neighbours, and others are edges of chunks.
        middle, power = length // 3 | 1, 1 << (min(length, 513) - 1).bit_length() - 1
        cuts = dict.fromkeys((middle, middle + 1, 1, length - 1, power, *_EDGES, *range(2, length)))
        self.cuts = [cut for cut in cuts if cut < length][: len(population) * self.rows]
        row = torch.arange(len(population))[:, None] * self.rows + torch.arange(batch)
        self.cut_of_row = torch.tensor(self.cuts)[row % len(self.cuts)]  # [R, B]
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(vocab_size, (len(population), batch, length), generator=generator)
        # Another token at every position: none is the same by chance.
        steps = torch.randint(1, max(vocab_size, 2), self.tokens.shape, generator=generator)
        self.others = (self.tokens + steps) % vocab_size

    def finding(self, bf16: bool) -> Finding | None:
        """What changes before the cuts; it is the future if it changes with one cut for all rows too.

        In evaluation mode other rows come first: a state that goes on from one row to the next brings in their end.
        """
        found = self._leak(self.cut_of_row, bf16, Kind.ROWS)
        if found is None or found.kind is not Kind.ROWS:
            return found
        mixed = None if self.population.model.training else self.mixed_rows(bf16)
        if mixed is not None and mixed.kind is Kind.ROWS:
            return mixed
        for cut in dict.fromkeys((found.since, *self.cuts[:4])):
            if ahead := self._leak(torch.full_like(self.cut_of_row, cut), bf16, Kind.FUTURE):
                return ahead
        return found

    def mixed_rows(self, bf16: bool) -> Finding | None:
        """What changes in every third row, from the second on, when the others change: nothing in a batch of one."""
        _, batch, length = self.tokens.shape
        kept = torch.arange(batch) % 3 == 1
        return self._leak((kept * length).expand(self.tokens.shape[:2]), bf16, Kind.ROWS)

    def _leak(self, cut_of_row: Tensor, bf16: bool, kind: Kind) -> Finding | None:
        training = self.population.model.training
        is_later = torch.arange(self.tokens.shape[2]) >= cut_of_row[..., None]  # [R, B, T]
        change = self._change(torch.where(is_later, self.others, self.tokens), bf16)
        if change is None:
            return Finding(Kind.UNKNOWN, training, 0, Kind.UNKNOWN.value)
        is_later = is_later[:, : self.rows]
        before, later = change.masked_fill(is_later, 0), change[is_later].max().item()
        most = before.max().item()
        if most <= (_ROUNDING_BF16 if bf16 else _ROUNDING) * later:
            return self._leak(cut_of_row, False, kind) if bf16 and most > 0 else None
        replica, row, position = (int(index) for index in torch.unravel_index(before.argmax(), before.shape))
        since = int(cut_of_row[replica, row])
        what = f"tokens from position {since} on change" if kind is Kind.FUTURE else "others change"
        mode = ", in training mode only" if training else ""
        message = f"{kind.value}: the outputs at position {position} change by {most:.2g} when {what}{mode}"
        return Finding(kind, training, since, message)

    def _change(self, changed: Tensor, bf16: bool) -> Tensor | None:
        """The largest change of an output at each position of the rows that are compared, `[R, rows, T]`.

        None if outputs are not finite, also without noise, which may bring a parameter out of its range.
        """
        for noise in (_NOISE, 0.0):
            change = (self._outputs(self.tokens, bf16, noise) - self._outputs(changed, bf16, noise)).abs().amax(dim=-1)
            if change.isfinite().all():
                return change.cpu()
        return None

    def _outputs(self, tokens: Tensor, bf16: bool, noise: float) -> Tensor:
        """Of the rows that are compared, float32 `[R, rows, T, V]`; buffers and random generators start as ever."""
        population, values = self.population, self.state["parameters_by_replica"]
        torch.manual_seed(0)
        population.load_state_dict(self.state | {"parameters_by_replica": values + noise * torch.randn_like(values)})
        torch.manual_seed(0)
        kind, training = population.device.type, population.model.training
        with torch.set_grad_enabled(training), torch.autocast(kind, torch.bfloat16, enabled=bf16):
            outputs = population(tokens.to(population.device))[:, : self.rows].detach()
            return outputs.to(torch.float32, copy=True)  # a view would keep the outputs of the whole batch


def find_state(population: Population, vocab_size: int, length: int, *, bf16: bool = False) -> str | None:
    """What is wrong if the model, in evaluation mode, gives other outputs for the same tokens after others, or None.

    What differs in bfloat16 is looked at in float32 again. The model and all random generators stay as they were.
    """
    model, was_training = population.model, population.model.training
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randint(vocab_size, (2, 2, length), generator=generator).to(population.device)
    with leaving_no_trace(population.device), attributes_kept(model), torch.no_grad():
        torch.manual_seed(0)
        tensors = {name: tensor + _NOISE * torch.randn_like(tensor) for name, tensor in model.named_parameters()}
        tensors |= {name: buffer.clone() for name, buffer in model.named_buffers()}
        kept = {place: tensors[name] for place, name in population.places.items() if name in tensors}
        model.eval()
        # By itself, as when it is loaded: a population drops what it keeps in attributes and, here, in buffers.
        with torch.autocast(population.device.type, torch.bfloat16, enabled=bf16):
            outputs = (functional_call(model, kept, (tokens,), tie_weights=False) for tokens in (one, other, one))
            first, _, again = (tensor.float() for tensor in outputs)
    model.train(was_training)
    rounding = _ROUNDING * first.abs().nan_to_num(0.0, posinf=0.0).max().item()  # of a GPU's atomic sums
    if torch.allclose(first, again, rtol=0, atol=rounding, equal_nan=True):
        return None
    if bf16:
        return find_state(population, vocab_size, length)
    written = [name for name, buffer in model.named_buffers() if not torch.equal(kept[name], buffer)]
    layers = dict.fromkeys(name.rpartition("mixer.")[2] for name in written)  # of which each has it
    return WRITES.format(", ".join(layers)) if layers else KEEPS_STATE


_known: dict[Hashable, Any] = {}  # what was found; of this process: runs of a sweep share mixers and shapes


@dataclass
class OutputCheck:
    """What a run asks of its population before it trains.

    Attributes:
        vocab_size: of the task: token ids are below it.
        lengths: of the rows that train, and then of those that are only scored, if that is another one.
        is_causal: no output may depend on later tokens, as in a language model.
        may_see_future: note what it sees, in place of refusing it.
        key: must say all of the model: a process looks once for all runs that share it.
        kinds, notes: what was found, after the check; the record has the notes.
    """

    vocab_size: int
    lengths: tuple[int, ...]
    is_causal: bool
    may_see_future: bool
    key: Hashable
    kinds: set[Kind] = field(default_factory=set, init=False)
    notes: list[str] = field(default_factory=list, init=False)

    @property
    def sees_future(self) -> bool | None:
        """Whether outputs depend on later tokens; None if nobody looked, or if it cannot be determined."""
        if Kind.FUTURE in self.kinds:
            return True
        return False if self.is_causal and Kind.UNKNOWN not in self.kinds else None

    def __call__(self, population: Population, bf16: bool, batch_size: int) -> None:
        """Raises RefusedMixer; `batch_size` is how many rows of each replica a step of training has."""
        self.kinds, self.notes = set(), []
        own = self.key, self.is_causal, bf16, population.device, population.in_a_loop
        if refusal := _once(own, partial(find_state, population, self.vocab_size, self.lengths[0], bf16=bf16)):
            raise RefusedMixer(refusal)
        for length, batch, trains in self._shapes(population.device, batch_size):
            shape = len(population), self.vocab_size, length, batch
            looked = {"bf16": bf16, "trains": trains, "is_causal": self.is_causal}
            found = _once((own, shape, trains), partial(find_leak, population, *shape[1:], **looked))
            if found is None:
                continue
            is_longer = length in self.lengths[1:]
            note = f"{found.message}, in test rows of {length} tokens" if is_longer else found.message
            if found.kind is Kind.ROWS and not found.training:
                raise RefusedMixer(f"{note}. Compute each row of x by itself")
            if found.kind is Kind.FUTURE and not self.may_see_future:
                raise RefusedMixer(f"{note}. model.may_see_future=true trains it all the same, and tables note it")
            if found.kind in self.kinds and not is_longer:
                continue  # the note says it
            log.warning(note)
            self.kinds.add(found.kind)
            self.notes.append(note)

    def _shapes(self, device: torch.device, batch_size: int) -> list[tuple[int, int, bool]]:
        """Tokens and number of the rows that are looked at, and whether such rows train."""
        trained, *longer = self.lengths
        if device.type == "cuda":
            # With the shapes of training a GPU launches the same kernels, and compiles none for the check only. Longer
            # rows are fewer, so that they fit in memory.
            fewer = [(length, max(2, min(batch_size, batch_size * trained // length)), False) for length in longer]
            return [(trained, batch_size, True), *fewer]
        if not self.is_causal:
            return [(trained, batch_size, False)]
        found = [(length, ROWS, length == trained) for length in self.lengths]
        # Some mix rows of large batches only.
        return [*found, (min(trained, SHORT), batch_size, False)] if batch_size > ROWS else found


def _once(key: Hashable, look: Callable[[], Any]) -> Any:
    if key not in _known:
        _known[key] = look()
    return _known[key]
