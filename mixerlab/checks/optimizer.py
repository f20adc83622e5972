"""What a run asks of an optimizer and a schedule, tried before it trains (training/README.md)."""

import io

import torch
from torch import Tensor

from mixerlab.records.errors import RefusedCode, type_and_message, users_code, with_place
from mixerlab.training.optimizers import PopulationOptimizer, has_own_step
from mixerlab.training.schedules import Schedule

_GRID = 10_000  # points of progress at which a schedule is looked at: more than the steps of a MAD run, at most 6,000
_LESS = -1e-4  # of a gradient: clipping leaves it as it is, and scales the whole of each replica's


def check_step(optimizer: PopulationOptimizer) -> None:
    """RefusedCode unless a step of the user's own counts itself, and stops a replica whose gradient is not finite.

    `optimizer` is of one replica.
    """
    if not has_own_step(type(optimizer)):
        return
    parameters, state = optimizer.parameters, optimizer.state[optimizer.parameters]
    seen = []
    for gradient in (1.0, torch.nan, 1.0):
        parameters.grad = torch.full_like(parameters, gradient)
        before = parameters.detach().clone()
        optimizer.step()
        stays = not optimizer.active.any() and torch.equal(parameters, before)
        seen.append((stays, state["step_number"].item(), state["steps_taken"].item()))
    if seen != [(False, 1, 1), (True, 2, 1), (True, 3, 1)]:
        raise RefusedCode(
            "its step must add 1 to `step_number` and, for each active replica, to `steps_taken`, and must clear"
            " `active` and leave the parameters of a replica whose gradient was not finite: see training/README.md"
        )


@torch.no_grad()
def check_replicas_apart(optimizer: PopulationOptimizer) -> None:
    """RefusedCode unless the step moves each replica by its own gradients, and by what is in the optimizer's state.

    `optimizer` is of two replicas that start alike.
    """
    parameters, state = optimizer.parameters, optimizer.state[optimizer.parameters]
    if others := [key for key, value in state.items() if not isinstance(value, Tensor)]:
        raise RefusedCode(f"self.state[self.parameters] has {others[0]}, which is no tensor")
    names, rounds = set(state), 3
    gradients = torch.randn(rounds, *parameters.shape, generator=torch.Generator().manual_seed(0))

    def saved() -> tuple[Tensor, bytes]:
        """The parameters, and the optimizer as a checkpoint has it; RefusedCode if it holds more than one can."""
        stream = io.BytesIO()
        try:
            torch.save(optimizer.state_dict(), stream)
            torch.load(io.BytesIO(stream.getvalue()), weights_only=True)
        except Exception as error:
            line = type_and_message(error).partition("WeightsUnpickler error: ")
            raise RefusedCode(f"a checkpoint cannot hold its state: {line[2] or line[0]}") from error
        return parameters.clone(), stream.getvalue()

    def steps(since: tuple[Tensor, bytes], numbers: range, share: float = 1.0) -> Tensor:
        """Where these steps move the first replica from what was `saved`, if the other has `share` of its gradients."""
        parameters.copy_(since[0])
        optimizer.load_state_dict(torch.load(io.BytesIO(since[1]), weights_only=True))
        for number in numbers:
            parameters.grad = torch.stack((gradients[number, 0], share * gradients[number, 1]))
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(number)
                optimizer.step()
        return parameters[0].clone()

    start = saved()
    steps(start, range(rounds - 1))
    if made := sorted(optimizer.state[parameters].keys() - names):
        raise RefusedCode(
            f"its step makes self.state[self.parameters][{made[0]!r}]: make it in __init__, since a CUDA graph would go"
            " on with the tensor of the steps that warmed it up"
        )
    between = saved()
    moved = steps(start, range(rounds))
    again = steps(between, range(rounds - 1, rounds))
    beside_another = steps(start, range(rounds), _LESS)
    rounding = 1e-3 * (moved - start[0][0]).abs().max().item()
    if not moved.isfinite().all():
        raise RefusedCode("from finite gradients its step gives parameters that are not finite")
    if not torch.allclose(again, moved, rtol=0, atol=rounding):
        raise RefusedCode(
            "interrupted and resumed its step moves otherwise: it depends on what it keeps outside of"
            " self.state[self.parameters], or of its state_dict(), which is what a checkpoint has"
        )
    if not torch.allclose(beside_another, moved, rtol=0, atol=rounding):
        raise RefusedCode(
            "its step mixes replicas: one moves otherwise beside another with other gradients. Each row of a tensor"
            " [R, ...] is a replica: reduce over dim=1, and never over the rows"
        )


def check_schedule(schedule: Schedule, name: str) -> None:
    """ValueError unless its multipliers are finite and not negative, as far as a grid of progress shows."""
    progress = torch.arange(_GRID + 1) / _GRID
    for what in ("learning_rate", "weight_decay"):
        try:
            with users_code():
                values = getattr(schedule, what)(progress)
        except Exception as error:  # of the user's code
            raise ValueError(f"schedule={name}: {what}: {with_place(error)}") from error
        if not isinstance(values, Tensor) or values.shape != progress.shape:
            found = f"shape {list(values.shape)}" if isinstance(values, Tensor) else repr(values)
            raise ValueError(f"schedule={name}: {what}(progress) gives {found}, and must give a tensor like progress")
        if (wrong := ~(values.isfinite() & (values >= 0))).any():
            first = int(wrong.int().argmax())
            at = f"{values[first]:.3g} at progress {progress[first]:g}"
            raise ValueError(f"schedule={name}: {what} is {at}, and must be finite and at least 0")
