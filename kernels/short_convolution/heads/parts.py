"""Which parts of a packed projection are convolved, and which of these have unit norm."""

from collections.abc import Sequence

from mixerlab.kernels.fused.heads.parts import Form, Part, columns_of


def divided(parts: Sequence[Part], channels: int) -> tuple[Sequence[Part], Sequence[Part]]:
    """The first parts, which together have `channels` columns, and the others."""
    ends = [columns_of(parts[:i]) for i in range(len(parts) + 1)]
    if channels not in ends:
        raise ValueError(f"the parts end at columns {ends[1:]}: pass a weight for as many channels, not {channels}")
    count = ends.index(channels)
    return parts[:count], parts[count:]


def normed(convolved: Sequence[Part]) -> int:
    """How many of the parts have unit norm, which come first."""
    forms = [part.form for part in convolved]
    return forms.index(Form.COPY) if Form.COPY in forms else len(forms)
