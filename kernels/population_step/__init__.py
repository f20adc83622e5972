"""The end of an optimizer's step for a population: directions, decay and frozen replicas in one pass."""

from torch import Tensor

from kernels.dispatch import resolve_backend
from kernels.population_step.reference import population_step_reference


def population_step(
    parameters: Tensor,
    gradient: Tensor,
    polar: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    *,
    lr: Tensor,
    column_scale: Tensor,
    decay: Tensor,
    decayed: int,
    clip: Tensor,
    active: Tensor,
    betas: tuple[float, float],
    bias_correction: Tensor,
    eps: float,
    backend: str = "auto",
) -> None:
    """Moves `parameters` in place: the first columns along `polar`, the rest along Adam's direction.

    Adam is Kingma & Ba 2015 with decoupled decay (Loshchilov & Hutter 2019); `polar` is Muon's direction. All
    tensors are float32, and the five of R rows contiguous. Nothing is read on the host.

    Args:
        parameters: `[R, P]`, a row a replica.
        gradient: `[R, P]`.
        polar: `[R, M]`, the directions of the first M columns, 0 <= M <= P.
        first_moment, second_moment: `[R, P]`; the columns from M on are updated in place.
        lr: learning rates `[R]`.
        column_scale: multiplies the learning rate, not the decay, `[P]`.
        decay: weight decay, a scalar.
        decayed: how many columns, from the first, it pulls to zero.
        clip: multiplies the gradient, `[R]`.
        active: rows where this is 0 keep their parameters, whatever else they hold, `[R]`.
        betas: decay rates of the moments.
        bias_correction: `1 - betas^t` in step t (from 1), `[2]`.
        eps: added to the root of the second moment.
        backend: `auto`, `reference` (PyTorch) or `triton`.

    Raises:
        ValueError: a `[R, ...]` tensor that is not contiguous or does not fit, or an unknown backend.
    """
    rows = {"gradient": gradient, "first_moment": first_moment, "second_moment": second_moment}
    for name, tensor in {"parameters": parameters, "polar": polar, **rows}.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {tensor.stride()}: pass a contiguous tensor")
        if name in rows and tensor.shape != parameters.shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: pass {tuple(parameters.shape)}, as parameters")
    if resolve_backend(backend, parameters.device) == "reference":
        step = population_step_reference
    else:
        from kernels.population_step.triton_step import population_step_triton as step  # Triton is optional
    tensors = parameters, gradient, polar, first_moment, second_moment
    step(*tensors, lr, column_scale, decay, decayed, clip, active, betas, bias_correction, eps)
