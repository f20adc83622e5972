"""Any `torch.optim.Optimizer` for a population, unmodified: each replica has its own, and they step one after another.

A step of other people's code may decide on the host, keep numbers there and find its state by the address of a
parameter. So none is captured, and each moves copies of its replica's parameters, which stay where they are.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from mixerlab.records.errors import RefusedCode, reason, type_and_message
from mixerlab.training.layout import Rule, Slot
from mixerlab.training.optimizers import PopulationOptimizer
from mixerlab.training.population import Population, drawing_from, seed_of_stream, seeded
from mixerlab.training.schedules import Schedule

PARTS = ("all", "matrices", "others")  # of the parameters
_STREAM = 2  # of a seed: initial values, the order of rows and the model draw from other streams
_TOLD = ("closure", "does not require grad")  # in what an optimizer raises that needs more than gradients

Make = Callable[..., torch.optim.Optimizer]  # takes groups of parameters, `lr`


class TorchOptimizer(PopulationOptimizer):
    """Moves each replica by optimizers of its own, of any class, at its learning rate.

    An optimizer gets its parameters in groups, each with its `lr` and with `use_muon`: whether it is of hidden
    matrices. In each step every group's `lr` is set by the schedule, and so is its `weight_decay`, if it has one. The
    numbers that it draws depend on the seed of the replica and on the step.

    Args:
        population, lr, schedule, total_steps, max_grad_norm: as for `PopulationOptimizer`.
        all: makes the optimizer of all parameters, such as `functools.partial(torch.optim.NAdam, momentum_decay=0.0)`.
        matrices, others: in its place, for hidden matrices (`Rule.MATRIX`), and for all else.
        table_lr_scale, gain_lr_scale: of `lr`, as for `Muon`.

    Raises:
        ValueError: parts that do not make up the whole, or what the constructor of an optimizer refuses.
        RefusedCode: an optimizer that needs more than gradients.
    """

    moments = ()
    capturable = False

    def __init__(
        self,
        population: Population,
        lr: Sequence[float],
        schedule: Schedule,
        total_steps: int,
        *,
        all: Make | None = None,
        matrices: Make | None = None,
        others: Make | None = None,
        table_lr_scale: float = 1.0,
        gain_lr_scale: float = 1.0,
        max_grad_norm: float | None = 1.0,
    ):
        makers = {name: make for name, make in zip(PARTS, (all, matrices, others), strict=True) if make is not None}
        if list(makers) not in (["all"], ["matrices", "others"]):
            raise ValueError(
                "optimizer.all must have a class, as in 'optimizer.all={_target_: torch.optim.NAdam}', or else"
                " optimizer.matrices and optimizer.others one each"
            )
        self.table_lr_scale, self.gain_lr_scale = table_lr_scale, gain_lr_scale
        super().__init__(population, lr, schedule, total_steps, weight_decay=1.0, max_grad_norm=max_grad_norm)
        slots = self.layout.slots
        by_part = {
            "all": slots,
            "matrices": [slot for slot in slots if slot.rule is Rule.MATRIX],
            "others": [slot for slot in slots if slot.rule is not Rule.MATRIX],
        }
        scales, decays = self.column_scale.cpu().expand(len(lr), -1), self.column_decay.cpu()
        self.by_replica = [
            [
                _Part(f"optimizer.{name}", make, by_part[name], row, its_scales, decays, rate)
                for name, make in makers.items()
                if by_part[name]
            ]
            for row, its_scales, rate in zip(self.parameters.detach(), scales, lr, strict=True)
        ]
        self.seeds = [population.seeds[number] for number in population.replicas]
        self.rates, self.decays = self.scheduled[:2].tolist()
        self.generator = torch.Generator(self.parameters.device)

    def lr_scale(self) -> Tensor:
        return self.layout.scale(self.table_lr_scale, self.gain_lr_scale)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "a population's step takes no closure"
        state = self.state[self.parameters]
        gradient = self.begin_step()
        number, *active = torch.cat((state["step_number"].view(1), state["active"])).tolist()  # waits for the device
        column = int(min(number, self.total_steps)) - 1
        for row, parts in enumerate(self.by_replica):
            if not active[row]:
                continue
            seed = seed_of_stream(self.seeds[row], _STREAM, int(number))
            with seeded(seed), drawing_from(self.generator.manual_seed(seed)):
                for part in parts:
                    part.step(self.parameters[row], gradient[row], self.rates[column], self.decays[column])

    def keep(self, rows: Sequence[int]) -> None:
        super().keep(rows)
        self.by_replica = [self.by_replica[row] for row in rows]
        self.seeds = [self.seeds[row] for row in rows]

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "by_replica": [[part.optimizer.state_dict() for part in parts] for parts in self.by_replica]
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for parts, saved in zip(self.by_replica, state_dict["by_replica"], strict=True):
            for part, its_state in zip(parts, saved, strict=True):
                _load(part.optimizer, its_state)


class _Part:
    """An optimizer of a replica, on copies of its parameters in `slots`; `name` is its key.

    `scales` and `decays`, on the CPU, multiply learning rate and weight decay, for each column of its `values` `[P]`.
    """

    def __init__(
        self,
        name: str,
        make: Make,
        slots: Sequence[Slot],
        values: Tensor,
        scales: Tensor,
        decays: Tensor,
        lr: float,
    ):
        self.name = f"{name}: {getattr(make, 'func', make).__name__}"
        groups: dict[tuple[bool, float, float], list[Slot]] = {}
        for slot in slots:
            alike = slot.rule is Rule.MATRIX, scales[slot.start].item(), decays[slot.start].item()
            groups.setdefault(alike, []).append(slot)
        self.slots = [slot for group in groups.values() for slot in group]
        self.parameters = [nn.Parameter(place.clone()) for place in self._places(values)]
        left = iter(self.parameters)
        described = [
            {"params": [next(left) for _ in group], "lr": lr * scale, "use_muon": is_matrix}
            for (is_matrix, scale, _), group in groups.items()
        ]
        try:
            self.optimizer = make(described, lr=lr)
        except Exception as error:
            raise ValueError(f"{self.name}: {reason(error)}") from error
        if hasattr(self.optimizer, "eval"):
            raise ValueError(f"{self.name} has other parameters in eval(), and a run scores those that it trains")
        self.peaks = [
            (group["lr"], group["weight_decay"] * decay if group.get("weight_decay") else None)
            for group, (_, _, decay) in zip(self.optimizer.param_groups, groups, strict=True)
        ]

    def _places(self, values: Tensor) -> list[Tensor]:
        """The parameters among the values `[P]` of a replica."""
        return [values[slot.start : slot.stop].view(slot.shape) for slot in self.slots]

    def step(self, values: Tensor, gradient: Tensor, rate: float, decay: float) -> None:
        """Moves the replica's `values` `[P]` by their `gradient`, at these multipliers of learning rate and decay."""
        places, copies = self._places(values), [parameter.data for parameter in self.parameters]
        torch._foreach_copy_(copies, places)
        for parameter, its_gradient in zip(self.parameters, self._places(gradient), strict=True):
            parameter.grad = its_gradient
        for group, (peak, weight_decay) in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * rate
            if weight_decay is not None:
                group["weight_decay"] = weight_decay * decay
        try:
            self.optimizer.step()
        except Exception as error:
            if any(words in str(error) for words in _TOLD):
                needs = "needs a closure or the graph of the gradients, and a run gives it the gradients alone"
                raise RefusedCode(f"{self.name} {needs} ({type_and_message(error)})") from error
            raise
        torch._foreach_copy_(places, [parameter.data for parameter in self.parameters])


def _load(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """`optimizer.load_state_dict`, but for the dtypes: PyTorch casts the state to that of the parameters."""
    optimizer.load_state_dict(dict(saved))
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, its_state in saved["state"].items():
        if isinstance(index, int):
            loaded = optimizer.state[parameters[index]]
            optimizer.state[parameters[index]] = tree_map(_as_saved, loaded, its_state)


def _as_saved(loaded: Any, saved: Any) -> Any:
    return saved.to(loaded.device) if isinstance(saved, Tensor) else loaded
