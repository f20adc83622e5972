"""Learning-rate and weight-decay schedules as pure functions of progress, so that they run on the device.

Progress is the fraction of the training's steps already made, a float32 tensor in [0, 1]; 1 only for the learning rate
that is reported after the last step.
"""

from typing import Protocol

import torch
from torch import Tensor


class Schedule(Protocol):
    """Multipliers of the peak learning rate and of the weight decay.

    Both methods get `progress`, float32 of any shape, and return a tensor of that shape with finite values of at
    least 0.
    """

    def learning_rate(self, progress: Tensor) -> Tensor: ...

    def weight_decay(self, progress: Tensor) -> Tensor: ...


def _warm_up(progress: Tensor, share: float) -> Tensor:
    return (progress / share).clamp(max=1.0) if share > 0 else torch.ones_like(progress)


class WSD:
    """Warm-up, stable, decay: linear warm-up over the first fraction `warmup`, linear decay to 0 over the last `decay`.

    In the decay phase, `gamma` anneals the weight decay: lambda * (1 - t)^gamma, where t is the fraction of that phase
    already made (Parallax paper, appendix Advantage Shrinkage During Decay). gamma = 0 keeps it constant.

    Args:
        warmup: fraction of the training, in [0, 1).
        decay: fraction of the training, above 0; warmup + decay is at most 1.
        gamma: finite, at least 0.

    Raises:
        ValueError: a value out of its range.
    """

    def __init__(self, warmup: float = 0.0, decay: float = 0.2, gamma: float = 0.0):
        if not (0 <= warmup < 1 and decay > 0 and round(warmup + decay, 12) <= 1):
            raise ValueError(
                f"schedule.warmup={warmup} and schedule.decay={decay} must be fractions of the training with"
                " 0 <= warmup, 0 < decay and warmup + decay <= 1"
            )
        if not 0 <= gamma < float("inf"):
            raise ValueError(f"schedule.gamma={gamma} must be a finite number >= 0")
        self.warmup, self.decay, self.gamma = warmup, decay, gamma

    def _remaining(self, progress: Tensor) -> Tensor:
        """1 until the decay phase, then falling linearly to 0."""
        return ((1 - progress) / self.decay).clamp(max=1.0)

    def learning_rate(self, progress: Tensor) -> Tensor:
        return _warm_up(progress, self.warmup) * self._remaining(progress)

    def weight_decay(self, progress: Tensor) -> Tensor:
        return self._remaining(progress) ** self.gamma


class Cosine:
    """Linear warm-up over the first fraction `warmup`, then half a cosine to 0; constant weight decay."""

    def __init__(self, warmup: float = 0.01):
        if not 0 <= warmup < 1:
            raise ValueError(f"schedule.warmup={warmup} must be a fraction of the training in [0, 1)")
        self.warmup = warmup

    def learning_rate(self, progress: Tensor) -> Tensor:
        after = ((progress - self.warmup) / (1 - self.warmup)).clamp(min=0.0)
        return _warm_up(progress, self.warmup) * 0.5 * (1 + torch.cos(torch.pi * after))

    def weight_decay(self, progress: Tensor) -> Tensor:
        return torch.ones_like(progress)


class Constant:
    """No schedule. mad-lab's own training amounts to this, because its scheduler never takes effect."""

    def learning_rate(self, progress: Tensor) -> Tensor:
        return torch.ones_like(progress)

    def weight_decay(self, progress: Tensor) -> Tensor:
        return torch.ones_like(progress)
