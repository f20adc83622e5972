"""The short causal convolution in front of a recurrence, by itself and on its way to heads."""

from collections.abc import Sequence

from torch import Tensor, nn

from mixerlab.kernels.fused.heads import Form, Part, split_heads
from mixerlab.kernels.fused.linear import join_rows
from mixerlab.kernels.short_convolution import short_convolution
from mixerlab.kernels.short_convolution.heads import convolve_heads


class ShortConvolution(nn.Conv1d):
    """Causal depthwise convolution over `kernel_size` positions, then SiLU: `[B, T, C]` to `[B, T, C]`.

    The parameters and their initialisation are those of `nn.Conv1d`: weight `[C, 1, kernel_size]`, bias `[C]`.
    """

    def __init__(self, channels: int, kernel_size: int = 4, bias: bool = False):
        super().__init__(channels, channels, kernel_size, groups=channels, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return short_convolution(x, self.weight.squeeze(1), self.bias)


def split_and_convolve(
    packed: Tensor,
    head_dim: int,
    heads: Sequence[int],
    *,
    convolutions: Sequence[ShortConvolution],
    normed: int,
    flat: Sequence[int] = (),
) -> tuple[Tensor, ...]:
    """The parts of `packed` `[B, T, C]`, side by side from its first column, in one launch each way.

    Args:
        packed: what a projection made.
        head_dim: of all heads.
        heads: how many heads each of the first parts has; these are `[B, T, heads, head_dim]`, views of `packed` if
            they are neither convolved nor normed.
        convolutions: without bias, of the first of them; may be empty.
        normed: how many of the first get unit norm per head, behind their convolution.
        flat: widths of the last parts, `[B, T, width]`: views of `packed`.
    """
    forms = [
        Form.UNIT_NORM if n < normed else Form.COPY if n < len(convolutions) else Form.VIEW for n in range(len(heads))
    ]
    parts = [
        *(Part(count, head_dim, form) for count, form in zip(heads, forms, strict=True)),
        *(Part(1, width) for width in flat),
    ]
    if convolutions:
        results = convolve_heads(packed, join_rows(*(layer.weight.squeeze(1) for layer in convolutions)), parts)
    else:
        results = split_heads(packed, parts)
    return *results[: len(heads)], *(x.squeeze(2) for x in results[len(heads) :])
