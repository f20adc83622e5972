"""An optimizer's step for a population, before and after Muon's orthogonalisation: two launches and one.

Nothing is read on the host: which replicas are active, the step's number and the schedule are device tensors.
"""

from torch import Tensor

from kernels.dispatch import resolve_backend
from kernels.population_step import reference


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

    The first `matrices` columns have Muon's momentum, the others Adam's two moments (Kingma & Ba 2015). A replica
    whose gradient has no finite norm is frozen: its `active` becomes 0. All tensors are float32.

    Args:
        gradient: `[R, P]`, contiguous, a row a replica.
        first_moment, second_moment: like `gradient`; of the first columns, only `first_moment` is used.
        step: how many steps the population has made, a scalar; counted up.
        active: 1 where a replica still trains, else 0, `[R]`; a frozen replica's moments are of no use.
        steps_taken: how many steps each replica has made, `[R]`; counted up where it is active after this.
        matrices: how many columns, from the first, are Muon's.
        momentum: decay rate of their momentum.
        nesterov: return the gradient moved by `momentum` towards the momentum, and not the momentum itself.
        betas: decay rates of Adam's moments.
        max_norm: largest norm of a replica's gradient.
        backend: `auto`, `reference` (PyTorch) or `triton`, which adds squares in the same order every time.

    Returns:
        `[R, matrices]`, what Muon orthogonalises; without `nesterov` a view of `first_moment`.

    Raises:
        ValueError: a tensor that is not contiguous or does not fit, or an unknown backend.
    """
    _check_rows(gradient=gradient, first_moment=first_moment, second_moment=second_moment)
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
    schedule: Tensor,
    decayed: int,
    eps: float,
    backend: str = "auto",
) -> None:
    """Moves `parameters` in place: the first columns along `polar`, the rest along Adam's direction.

    Weight decay is decoupled (Loshchilov & Hutter 2019). All tensors are float32.

    Args:
        parameters: `[R, P]`, contiguous, a row a replica.
        polar: `[R, M]`, contiguous, the directions of the first M columns, 0 <= M <= P.
        first_moment, second_moment: like `parameters`, as `update_moments` left them.
        step: the step's number, from 1, a scalar.
        active: rows where this is 0 keep their parameters, whatever else they hold, `[R]`.
        lr: peak learning rates, `[R]`.
        column_scale: multiplies the learning rate, not the decay, `[P]`.
        schedule: of each step, a column: the multiplier of the learning rate, the weight decay, and the bias
            corrections `1 - beta^step` of both moments, `[4, steps]`, contiguous. The last holds from there on.
        decayed: how many columns, from the first, weight decay pulls to zero.
        eps: added to the root of the second moment.
        backend: `auto`, `reference` (PyTorch) or `triton`.

    Raises:
        ValueError: a tensor that is not contiguous or does not fit, or an unknown backend.
    """
    _check_rows(parameters=parameters, first_moment=first_moment, second_moment=second_moment)
    for name, tensor in {"polar": polar, "schedule": schedule}.items():
        _check_contiguous(name, tensor)
    tensors = parameters, polar, first_moment, second_moment, step, active, lr, column_scale, schedule
    _backend(backend, parameters).update_parameters(*tensors, decayed, eps)


def _check_rows(**rows: Tensor) -> None:
    first, *_ = rows
    for name, tensor in rows.items():
        _check_contiguous(name, tensor)
        if tensor.shape != rows[first].shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: pass {tuple(rows[first].shape)}, as {first}")


def _check_contiguous(name: str, tensor: Tensor) -> None:
    if not tensor.is_contiguous():
        raise ValueError(f"{name} has strides {tensor.stride()}: pass a contiguous tensor")


def _backend(backend: str, tensor: Tensor):
    if resolve_backend(backend, tensor.device) == "reference":
        return reference
    from kernels.population_step import triton_step  # Triton is optional

    return triton_step
