"""The shapes of an operator's arguments."""

from collections.abc import Sequence

from torch import Tensor


def check_shapes(*wanted: tuple[str, Tensor, Sequence[int | str]], fitting: str = "") -> None:
    """`ValueError` for the first tensor that has another shape than the one beside it.

    Args:
        wanted: name, tensor and shape of each; a size that has a name in place of a number may be any from 1 on.
        fitting: what the numbers come from, for the message.
    """
    for name, x, shape in wanted:
        fits = x.ndim == len(shape) and all(
            have > 0 if isinstance(want, str) else have == want for have, want in zip(x.shape, shape, strict=True)
        )
        if not fits:
            told = f"{'a non-empty ' if 0 in x.shape else ''}[{', '.join(map(str, shape))}]"
            raise ValueError(f"{name} has shape {tuple(x.shape)}: pass {told}{fitting and f', to fit {fitting}'}")
