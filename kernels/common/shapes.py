"""The shapes of an operator's arguments."""

from collections.abc import Sequence

from torch import Tensor


def check_shapes(*wanted: tuple[str, Tensor, Sequence[int | str]], fitting: str = "") -> None:
    """`ValueError` for the first tensor that has another shape than the one beside it.

    Args:
        wanted: name, tensor and shape of each; a size that has a name in place of a number may be any.
        fitting: what the numbers come from, for the message.
    """
    for name, x, shape in wanted:
        sizes = tuple(have if isinstance(want, str) else want for have, want in zip(x.shape, shape, strict=False))
        if x.ndim != len(shape) or x.shape != sizes:
            told = f"pass [{', '.join(map(str, shape))}]{fitting and f', to fit {fitting}'}"
            raise ValueError(f"{name} has shape {tuple(x.shape)}: {told}")
