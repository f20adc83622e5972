"""Rows of targets for groups of parameters."""

from torch import Tensor


def rows_of_groups(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """`[G, ..., V]` as `[G, N, V]`, and `[G, ...]` as `[G, N]`; a ValueError for other shapes."""
    if logits.shape[:-1] != targets.shape or not targets.ndim:
        raise ValueError(
            f"logits has shape {tuple(logits.shape)} and targets {tuple(targets.shape)}: pass logits [G, ..., V]"
            " and targets [G, ...]"
        )
    groups, vocabulary = len(targets), logits.shape[-1]
    return logits.reshape(groups, -1, vocabulary), targets.reshape(groups, -1)
