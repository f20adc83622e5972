"""The trained weights of a run: copied on the device at the epochs that the selections take, and as safetensors files.

A file holds the state of one replica's model under the names of its parameters and buffers: all parameters, and the
buffers that are persistent or that training changed. Its metadata has one key, `mixerlab`, with JSON that says of which
run and replica they are, and what they reached. safetensors writes several keys in a random order; with one, the same
weights give the same bytes.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from mixerlab.records.errors import type_and_message
from mixerlab.training.population import Population

_METADATA_KEY = "mixerlab"


class KeptWeights(nn.Module):
    """What the replicas of a population had learned at the epoch that one selection takes, or at the start.

    It is the epoch that `training.metrics.summarise` takes: the first of the lowest `criterion`, where one that is not
    finite counts as infinite, of the epochs up to the one that froze the replica. All of it is decided on the device,
    and `update` never waits for it. A snapshot is that of a selection of one epoch, or of none: the initial values.

    `learned`: the population's tensors that training changes, each `[R, ...]`.
    """

    epoch: Tensor  # int64 [R]; -1: none yet
    lowest: Tensor  # float32 [R]: the criterion at that epoch
    open: Tensor  # bool [R]: the replica's next epoch counts; of one that has stopped, buffers change and scores too
    left: Tensor  # int64 [r]: `numbers`

    def __init__(self, learned: Sequence[Tensor]):
        super().__init__()
        replicas = len(learned[0])
        for number, tensor in enumerate(learned):
            self.register_buffer(f"learned_{number}", tensor.detach().clone())
        self.register_buffer("epoch", torch.full((replicas,), -1))
        self.register_buffer("lowest", torch.full((replicas,), torch.inf))
        self.register_buffer("open", torch.ones(replicas, dtype=torch.bool))
        self.numbers = list(range(replicas))
        self.register_buffer("left", torch.arange(replicas), persistent=False)

    def keep(self, numbers: Sequence[int]) -> None:
        """From now on, rows are those of the replicas with these numbers; what the others reached stays."""
        self.numbers = list(numbers)
        self.left = torch.tensor(self.numbers, device=self.left.device)

    @property
    def learned(self) -> list[Tensor]:
        """Of all replicas, those that have left included; as they were at the start as long as there is no epoch."""
        return [buffer for name, buffer in self.named_buffers() if name.startswith("learned_")]

    @torch.no_grad()
    def update(self, epoch: int, criterion: Tensor, active: Tensor, learned: Sequence[Tensor]) -> None:
        """Copies the rows of the replicas for which this epoch is the best so far.

        The number `epoch` is higher with each call. Of the r replicas that are left, `criterion` is float32 `[r]`,
        `active`, bool `[r]`, says which train on, and `learned` is as for the constructor, each `[r, ...]`.
        """
        left = self.left
        chosen, lowest = self.epoch[left], self.lowest[left]
        criterion = torch.where(criterion.isfinite(), criterion, torch.inf)
        better = self.open[left] & ((chosen < 0) | (criterion < lowest))
        self.epoch[left] = torch.where(better, epoch, chosen)
        self.lowest[left] = torch.where(better, criterion, lowest)
        self.open[left] = active
        for all_kept, now in zip(self.learned, learned, strict=True):
            for row, number in enumerate(self.numbers):  # one by one: no temporary copy of all parameters
                kept = all_kept[number]
                torch.where(better[row], now[row], kept, out=kept)


def model_state(population: Population, learned: Sequence[Tensor]) -> dict[str, Tensor]:
    """The state of one replica's model, by name, on the CPU; `learned` is its row of each of `population.learned()`."""
    parameters, *buffers = (tensor.detach().cpu() for tensor in learned)
    state = {slot.name: parameters[slot.start : slot.stop].view(slot.shape).clone() for slot in population.layout.slots}
    shared = _persistent_buffers(population.model)
    # What training changed is part of the state even if the model says that it is not persistent.
    own = dict(zip(sorted(population.buffers_by_replica), buffers, strict=True))
    return state | {name: buffer.detach().cpu().clone() for name, buffer in (shared | own).items()}


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """What a file of its weights has at least, by name: its parameters and the buffers that are persistent."""
    return dict(model.named_parameters()) | _persistent_buffers(model)


def _persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    in_state = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in in_state}


def pack(state: Mapping[str, Tensor], about: Mapping[str, Any]) -> bytes:
    """The content of a weights file: `state` by name, and the JSON values of `about`."""
    return save(dict(state), {_METADATA_KEY: json.dumps(dict(about), sort_keys=True, allow_nan=False)})


def unpack(content: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `pack` was given. Nothing in the file is run: it is numbers and JSON.

    Raises:
        ValueError: it is no such file.
    """
    try:
        state = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        about = json.loads(header["__metadata__"][_METADATA_KEY])
    except Exception as error:
        raise ValueError(f"it is no weights file of mixerlab ({type_and_message(error)})") from error
    return state, about


def put_in(model: nn.Module, state: Mapping[str, Tensor], may_lack: bool = False) -> None:
    """Gives `model` the state that `pack` was given; what it has and the state lacks stays, if that `may_lack` some.

    Raises:
        ValueError: another model's; the message has the first name or shape that differs.
    """
    needed = tensors_of(model)
    # By all names: a population unties tensors that are frozen and, when it moves to a GPU, buffers.
    places = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    for name in needed:
        if name not in state and not may_lack:
            raise ValueError(f"it has no {name}, which the model has")
    first_name = {id(tensor): name for name, tensor in needed.items()}
    for name in state:
        first = first_name.get(id(places.get(name)), name)
        is_shared = first == name or first not in state or torch.equal(state[name], state[first])
        if name not in places or not is_shared:
            raise ValueError(f"it has {name}, which the model does not have")
        if state[name].shape != places[name].shape:
            found, wanted = list(state[name].shape), list(places[name].shape)
            raise ValueError(f"its {name} has shape {found}, and the model's {wanted}")
    with torch.no_grad():
        for name, tensor in state.items():
            places[name].copy_(tensor)


def start_from(model: nn.Module, start: nn.Module) -> None:
    """Gives a model the values of another, in each place of what that shares; what only it has stays.

    ValueError as of `put_in`.
    """
    own, named = tensors_of(model), start.named_parameters(remove_duplicate=False)
    untied = {name: tensor for name, tensor in named if name in own}
    put_in(model, tensors_of(start) | untied, may_lack=True)
