"""An optimizer's step for a population: two launches before Muon's orthogonalisation and one after it.

The host reads nothing: which replicas are active, the index of the step and the schedule are tensors on the device.
"""

import math

import torch
from torch import Tensor

from mixerlab.kernels.common.dispatch import resolve_backend
from mixerlab.kernels.optimizer.population_step import reference


def update_moments(
    gradient: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    *,
    step: Tensor,
    active: Tensor,
    steps_taken: Tensor,
    matrices: int,
    momentum: float,
    nesterov: bool,
    betas: tuple[float, float],
    max_norm: float,
    backend: str = "auto",
) -> Tensor:
    """Scales each replica's gradient down to norm `max_norm` and updates the moments with it, in place.

    The first `matrices` columns have Muon's momentum, the others Adam's two moments (Kingma & Ba 2015). A replica whose
    gradient has a norm that is not finite is frozen: its `active` becomes 0. All tensors are contiguous, and either all
    float32 or all float64.

    Args:
        gradient: `[R, P]`, a row for each replica.
        first_moment, second_moment: like `gradient`; for the first columns only `first_moment` is used.
        step: how many steps the population has made, a scalar; incremented.
        active: 1 for a replica that still trains, else 0, `[R]`. The moments of a frozen replica are not used again.
        steps_taken: how many steps each replica has made, `[R]`; incremented for those that are still active.
        matrices: how many columns, from the first on, are Muon's.
        momentum: decay rate of their momentum.
        nesterov: return the gradient moved by `momentum` towards the momentum, and not the momentum itself.
        betas: decay rates of Adam's moments.
        max_norm: largest norm of a replica's gradient.
        backend: `auto`, `reference` (PyTorch) or `triton` (float32; it adds squares in the same order every time).

    Returns:
        What Muon orthogonalises, `[R, matrices]`; without `nesterov` a view of `first_moment`.

    Raises:
        ValueError: a tensor that is not contiguous or whose shape or dtype does not fit, a count of columns out of
            range, an unknown backend, or one that cannot run here.
    """
    rows = gradient.shape
    _check_tensors(
        ("gradient", gradient, (None, None)),
        ("first_moment", first_moment, rows),
        ("second_moment", second_moment, rows),
        ("step", step, ()),
        ("active", active, rows[:1]),
        ("steps_taken", steps_taken, rows[:1]),
    )
    _check_counts(("matrices", matrices, 0, rows[1]))
    tensors = gradient, first_moment, second_moment, step, active, steps_taken
    return _backend(backend, gradient).update_moments(*tensors, matrices, momentum, nesterov, betas, max_norm)


def update_parameters(
    parameters: Tensor,
    polar: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    *,
    step: Tensor,
    active: Tensor,
    lr: Tensor,
    column_scale: Tensor,
    column_decay: Tensor,
    schedule: Tensor,
    eps: float,
    backend: str = "auto",
) -> None:
    """Moves `parameters` in place: the first columns along `polar`, the rest along Adam's direction.

    Weight decay is decoupled (Loshchilov & Hutter 2019). All tensors are contiguous, and either all float32 or all
    float64.

    Args:
        parameters: `[R, P]`, a row for each replica.
        polar: `[R, M]`, the directions of the first M columns, 0 <= M <= P.
        first_moment, second_moment: like `parameters`, as `update_moments` left them.
        step: the index of the step, from 1 on, a scalar.
        active: `[R]`; rows with 0 keep their parameters, whatever the other tensors hold.
        lr: peak learning rates, `[R]`.
        column_scale: multiplies the learning rate, not the decay, `[P]` or `[R, P]`.
        column_decay: multiplies the weight decay, `[P]`.
        schedule: `[4, steps]`, steps >= 1. A column for each step: the multiplier of the learning rate, the weight
            decay, and the bias corrections `1 - beta^step` of both moments. The last one also serves all later steps.
        eps: added to the root of the second moment.
        backend: `auto`, `reference` (PyTorch) or `triton` (float32).

    Raises:
        ValueError: a tensor that is not contiguous or whose shape or dtype does not fit, a count of columns out of
            range, an unknown backend, or one that cannot run here.
    """
    rows = parameters.shape
    _check_tensors(
        ("parameters", parameters, (None, None)),
        ("polar", polar, (*rows[:1], None)),
        ("first_moment", first_moment, rows),
        ("second_moment", second_moment, rows),
        ("step", step, ()),
        ("active", active, rows[:1]),
        ("lr", lr, rows[:1]),
        ("column_scale", column_scale, rows if column_scale.ndim == 2 else rows[1:]),
        ("column_decay", column_decay, rows[1:]),
        ("schedule", schedule, (4, None)),
    )
    _check_counts(
        ("polar.shape[1]", polar.shape[1], 0, rows[1]),
        ("schedule.shape[1]", schedule.shape[1], 1, math.inf),
    )
    tensors = parameters, polar, first_moment, second_moment, step, active, lr, column_scale, column_decay, schedule
    _backend(backend, parameters).update_parameters(*tensors, eps)


def _check_tensors(*table: tuple[str, Tensor, tuple[int | None, ...]]) -> None:
    """Checks (name, tensor, shape that fits) each, where None stands for any size. The first tensor sets the dtype.

    The kernels trust these shapes: they would read other memory for a tensor that does not fit.
    """
    dtype = torch.float64 if table[0][1].dtype == torch.float64 else torch.float32
    for name, tensor, wanted in table:
        sizes = tensor.shape
        fits = len(sizes) == len(wanted) and all(want in (None, size) for want, size in zip(wanted, sizes, strict=True))
        if not (fits and tensor.dtype == dtype and tensor.is_contiguous()):
            shape = ", ".join("any" if want is None else str(want) for want in wanted)
            raise ValueError(
                f"{name} is {tensor.dtype} {list(sizes)} with strides {tensor.stride()}: pass {dtype} [{shape}],"
                f" contiguous, to fit {table[0][0]}"
            )


def _check_counts(*table: tuple[str, int, int, float]) -> None:
    """Checks (name, value, smallest and largest value) each."""
    for name, value, least, largest in table:
        if not least <= value <= largest:
            raise ValueError(f"{name}={value} must be from {least} to {largest}")


def _backend(backend: str, tensor: Tensor):
    why = "" if tensor.dtype == torch.float32 else f"the kernels take float32, not {tensor.dtype}"
    if resolve_backend(backend, tensor.device, why) == "reference":
        return reference
    from mixerlab.kernels.optimizer.population_step import triton_kernels  # here, because Triton is optional

    return triton_kernels
