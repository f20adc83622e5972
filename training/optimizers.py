"""Muon and AdamW for a population: each is a `torch.optim.Optimizer` over one tensor `[R, P]`.

A step is a fixed list of tensor operations without decisions on the host: learning rates, the schedule of all steps and
the set of active replicas are tensors on the device. One step moves all replicas; nothing crosses rows.
"""

import inspect
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mixerlab.kernels.optimizer.newton_schulz import orthogonalise
from mixerlab.kernels.optimizer.population_step import update_moments, update_parameters
from mixerlab.records.errors import RefusedCode
from mixerlab.training.layout import Grouping, Rule
from mixerlab.training.population import Population
from mixerlab.training.schedules import Schedule

# Muon: by rows and columns of a matrix. The first two have the names of `torch.optim.Muon`'s `adjust_lr_fn`.
UPDATE_SCALES: dict[str, Callable[[int, int], float]] = {
    "original": lambda rows, columns: math.sqrt(max(1.0, rows / columns)),  # Jordan et al. 2024
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),  # Liu et al. 2025, Moonlight
    "spectral": lambda rows, columns: math.sqrt(rows / columns),  # Bernstein & Newhouse 2024
    "none": lambda rows, columns: 1.0,
}


class PopulationOptimizer(torch.optim.Optimizer):
    """AdamW for a population, with clipping, frozen replicas and a schedule; its subclasses change some columns' way.

    Args:
        population: its `parameters_by_replica` is optimised.
        lr: peak learning rate of each replica, length R.
        schedule: multipliers over the `total_steps` of training.
        weight_decay: decoupled decay coefficient.
        betas, eps: Adam's.
        max_grad_norm: a replica's gradient is scaled down to at most this norm; None: no clipping.

    A replica with a non-finite gradient is frozen: after the step, its entry in `active` (bool `[R]`) is False, and its
    parameters are those before the step. A subclass says what it does otherwise than AdamW by `lr_scale`,
    `decay_scale`, `directed` and `direction`, or by a `step` of its own (training/README.md).

    Raises:
        ValueError: a number out of its range.
    """

    # For the first `directed()` columns: the decay rate of the momentum, and whether it is Nesterov's.
    momentum: float = 0.0
    nesterov: bool = False
    # Tensors like the parameters in `state`, zeros at the start. The step of all needs both of these.
    moments: tuple[str, ...] = ("first_moment", "second_moment")
    # Whether a step decides nothing on the host, so that a CUDA graph may have it. Else forward and backward are one.
    capturable: bool = True

    def __init__(
        self,
        population: Population,
        lr: Sequence[float],
        schedule: Schedule,
        total_steps: int,
        *,
        weight_decay: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        max_grad_norm: float | None = 1.0,
    ):
        for value in lr:
            _require(0 < value < math.inf, f"lr={value} must be a finite number above 0")
        _require(0 <= weight_decay < math.inf, f"weight_decay={weight_decay} must be a finite number >= 0")
        both = len(betas) == 2 and all(0 <= beta < 1 for beta in betas)
        _require(both, f"betas={list(betas)} must be two numbers in [0, 1)")
        _require(0 < eps < math.inf, f"eps={eps} must be a finite number above 0")
        _require(max_grad_norm is None or max_grad_norm > 0, f"max_grad_norm={max_grad_norm} must be above 0, or null")
        assert len(lr) == len(population)
        parameters = population.parameters_by_replica
        super().__init__([parameters], {})
        self.layout = population.layout
        self.schedule, self.total_steps = schedule, total_steps
        self.base_weight_decay, self.betas, self.eps = weight_decay, (betas[0], betas[1]), eps
        self.max_grad_norm = math.inf if max_grad_norm is None else max_grad_norm
        self.column_scale = self.layout.rates(self.lr_scale(), lr).to(parameters.device)
        self.column_decay = self.layout.decaying(self.decay_scale()).to(parameters.device)
        self.scheduled = self._scheduled().to(parameters.device)
        self.state[parameters] = {
            "lr": torch.tensor(lr, device=parameters.device),
            # Not "step": PyTorch and Lightning leave a tensor of that name on the CPU when they load a checkpoint.
            "step_number": torch.zeros((), device=parameters.device),
            # 1 or 0, not bool: loading a checkpoint casts the optimizer's state to the dtype of the parameters.
            "active": torch.ones(len(lr), device=parameters.device),
            "steps_taken": torch.zeros(len(lr), device=parameters.device),
            **{name: torch.zeros_like(parameters) for name in self.moments},
        }

    def add_param_group(self, param_group: dict) -> None:
        """As PyTorch's, without its decorator, which imports TorchDynamo: seconds of each dry run and finished run."""
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    def _scheduled(self) -> Tensor:
        """The `schedule` of `kernels.optimizer.population_step.update_parameters`, `[4, total_steps]`."""
        done = torch.arange(self.total_steps)
        progress = done / self.total_steps
        corrections = (1 - beta ** (done.double() + 1) for beta in self.betas)
        decay = self.base_weight_decay * self.schedule.weight_decay(progress)
        rows = self.schedule.learning_rate(progress), decay, *corrections
        return torch.stack([row.float() for row in rows])

    def lr_scale(self) -> Tensor:
        """Each column's multiplier of the learning rate, float32 `[P]`."""
        return torch.ones(self.layout.size)

    def decay_scale(self) -> Tensor:
        """Each column's multiplier of the weight decay, float32 `[P]`."""
        return torch.ones(self.layout.size)

    def directed(self) -> int:
        """This many columns, from the first, move along the `direction` of their momentum; the others by Adam."""
        return 0

    def direction(self, momentum: Tensor, gradient: Tensor) -> Tensor:
        """The directions of those columns, `[R, directed()]`, from their momentum and the gradient, which is clipped.

        Not called if there are none. A step takes them times the learning rate.
        """
        raise NotImplementedError(f"{type(self).__name__} must define direction")

    @property
    def parameters(self) -> Tensor:
        return self.param_groups[0]["params"][0]

    def written_tensors(self) -> list[Tensor]:
        """The tensors besides the parameters that a step changes, in an order that loading a checkpoint keeps."""
        return [tensor for _, tensor in sorted(self.state[self.parameters].items())]

    @property
    def active(self) -> Tensor:
        """Which replicas still train, bool `[R]`."""
        return self.state[self.parameters]["active"] > 0

    def freeze(self, replicas: Tensor) -> None:
        """Permanently stops the replicas marked in `replicas`, bool `[R]`."""
        self.state[self.parameters]["active"] *= ~replicas

    def keep(self, rows: Sequence[int]) -> None:
        """Keeps only the replicas in these rows; the population must do the same."""
        state = self.state[self.parameters]
        state.update({name: tensor[list(rows)] for name, tensor in state.items() if tensor.ndim})
        if self.column_scale.ndim == 2:
            self.column_scale = self.column_scale[list(rows)]

    @property
    def steps_taken(self) -> Tensor:
        """How many steps each replica made before it was frozen, float32 `[R]`."""
        return self.state[self.parameters]["steps_taken"]

    def learning_rates(self) -> Tensor:
        """Each replica's learning rate in the next step, `[R]`."""
        state = self.state[self.parameters]
        return state["lr"] * self.schedule.learning_rate(state["step_number"] / self.total_steps)

    def weight_decay(self) -> Tensor:
        """The weight decay in the next step, a scalar."""
        return self.base_weight_decay * self.schedule.weight_decay(
            self.state[self.parameters]["step_number"] / self.total_steps
        )

    def begin_step(self) -> Tensor:
        """The head of a step: counts it, freezes replicas whose gradient is not finite, and gives it clipped, `[R, P]`.

        A frozen replica's is of no use.
        """
        assert self.parameters.grad is not None
        state, gradient = self.state[self.parameters], self.parameters.grad
        norm = gradient.norm(dim=1)
        state["active"] *= norm.isfinite()
        state["steps_taken"] += state["active"]
        state["step_number"] += 1
        return gradient * self._clipping(norm)

    def _clipping(self, norm: Tensor) -> Tensor:
        """What each replica's gradient of this norm is multiplied by, `[R, 1]`."""
        return (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)[:, None]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # a population's step takes no closure
        """Makes one step from the population's gradient."""
        assert closure is None, "a population's step takes no closure"
        parameters, state = self.parameters, self.state[self.parameters]
        assert parameters.grad is not None
        matrices = self.directed()
        momentum = update_moments(
            parameters.grad,
            state["first_moment"],
            state["second_moment"],
            step=state["step_number"],
            active=state["active"],
            steps_taken=state["steps_taken"],
            matrices=matrices,
            momentum=self.momentum,
            nesterov=self.nesterov,
            betas=self.betas,
            max_norm=self.max_grad_norm,
        )
        direction = momentum
        if matrices:
            gradient = parameters.grad
            if has_own_direction(type(self)):  # Muon's takes the momentum alone: for it nothing more is launched
                gradient = gradient * self._clipping(gradient.norm(dim=1))
            direction = self.direction(momentum, gradient[:, :matrices])
        if not isinstance(direction, Tensor) or direction.shape != momentum.shape:
            given = f"a tensor {list(direction.shape)}" if isinstance(direction, Tensor) else repr(direction)
            raise RefusedCode(f"direction gives {given} for a momentum {list(momentum.shape)}: it must have its shape")
        update_parameters(
            parameters,
            direction,
            state["first_moment"],
            state["second_moment"],
            step=state["step_number"],
            active=state["active"],
            lr=state["lr"],
            column_scale=self.column_scale,
            column_decay=self.column_decay,
            schedule=self.scheduled,
            eps=self.eps,
        )


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(f"optimizer.{otherwise}")


def has_own_step(optimizer: type[PopulationOptimizer]) -> bool:
    """Whether a class overrides the step of all; PyTorch wraps that of every class of which there is an instance."""
    return inspect.unwrap(optimizer.step) is not inspect.unwrap(PopulationOptimizer.step)


def has_own_direction(optimizer: type[PopulationOptimizer]) -> bool:
    """Whether a class has a direction that is not ours."""
    return optimizer.direction not in (PopulationOptimizer.direction, Muon.direction)


class AdamW(PopulationOptimizer):
    """Adam with decoupled weight decay on every parameter (Loshchilov & Hutter 2019); all have one learning rate."""


class Muon(PopulationOptimizer):
    """Muon (Jordan et al. 2024) on hidden matrices, Adam on all else (Parallax paper, section Muon Optimizer).

    A hidden matrix moves along the polar factor of its momentum (equation muon_update), times `update_scale`. The
    matrices of all replicas are orthogonalised together.

    Args:
        population, lr, schedule, total_steps, weight_decay, max_grad_norm: as for `PopulationOptimizer`.
        momentum: decay rate of the momentum of matrices.
        nesterov: orthogonalise the gradient moved towards the momentum, not the momentum itself.
        update_scale: a name of UPDATE_SCALES: by what a matrix's shape scales its learning rate (weight decay has no
            scale). The paper's is "spectral scaling", which it does not define: perhaps five times `match_rms_adamw`
            (results/README.md).
        ns_steps: Newton-Schulz iterations.
        betas, eps: Adam's.
        table_lr_scale: of `lr`, for the embedding, the head (unless Muon has it), other tensors of two or more axes.
        gain_lr_scale: of `lr`, for norms, other gains and biases.
        filters, decoder, head: `adam` or `muon`, which the paper leaves open; equal to the population's `Grouping`.
        decayed: what has weight decay, also left open: `matrices`, or `all`, each at its own learning rate.

    Raises:
        ValueError: a number out of its range, or an unknown `decayed` or `update_scale`.
    """

    def __init__(
        self,
        population: Population,
        lr: Sequence[float],
        schedule: Schedule,
        total_steps: int,
        *,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = False,
        update_scale: str = "original",
        ns_steps: int = 5,
        betas: tuple[float, float] = (0.8, 0.95),
        eps: float = 1e-7,
        table_lr_scale: float = 0.3,
        gain_lr_scale: float = 0.015,
        max_grad_norm: float | None = 1.0,
        filters: str = "adam",
        decoder: str = "muon",
        head: str = "adam",
        decayed: str = "matrices",
    ):
        assert population.layout.grouping == Grouping(filters, decoder, head)
        _require(0 <= momentum < 1, f"momentum={momentum} must be in [0, 1)")
        _require(ns_steps >= 1, f"ns_steps={ns_steps} must be at least 1")
        for key, value in (("table_lr_scale", table_lr_scale), ("gain_lr_scale", gain_lr_scale)):
            _require(0 <= value < math.inf, f"{key}={value} must be a finite number >= 0")
        _require(decayed in ("matrices", "all"), f"decayed={decayed!r}: choose matrices or all")
        _require(update_scale in UPDATE_SCALES, f"update_scale={update_scale!r}: choose {', '.join(UPDATE_SCALES)}")
        self.momentum, self.nesterov, self.ns_steps = momentum, nesterov, ns_steps
        self.update_scale, self.decayed = update_scale, decayed
        self.table_lr_scale, self.gain_lr_scale = table_lr_scale, gain_lr_scale
        matrices = [slot for slot in population.layout.slots if slot.rule is Rule.MATRIX]
        self.matrix_shapes = tuple(shape for slot in matrices for shape in slot.matrices)
        super().__init__(
            population,
            lr,
            schedule,
            total_steps,
            weight_decay=weight_decay,
            betas=betas,
            eps=eps,
            max_grad_norm=max_grad_norm,
        )

    def lr_scale(self) -> Tensor:
        by_shape = UPDATE_SCALES[self.update_scale]
        scale = [torch.full((rows * columns,), by_shape(rows, columns)) for rows, columns in self.matrix_shapes]
        others = self.layout.scale(self.table_lr_scale, self.gain_lr_scale)[self.directed() :]
        return torch.cat([*scale, others])

    def decay_scale(self) -> Tensor:
        if self.decayed == "matrices":
            return self.layout.scale(0.0, 0.0)
        return self.layout.scale(self.table_lr_scale, self.gain_lr_scale)

    def directed(self) -> int:
        return self.layout.span(Rule.MATRIX).stop

    def direction(self, momentum: Tensor, gradient: Tensor) -> Tensor:
        return orthogonalise(momentum, self.matrix_shapes, self.ns_steps)
