"""The short causal convolution in front of a recurrence, by itself and on its way to heads."""

from collections.abc import Sequence

from torch import Tensor, nn

from mixerlab.kernels.fused.heads import Form, Part
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
    *,
    unit_norm: Sequence[ShortConvolution],
    convolved: Sequence[ShortConvolution] = (),
    heads: Sequence[int] = (),
    flat: Sequence[int] = (),
) -> tuple[Tensor, ...]:
    """The parts of `packed` `[B, T, C]`, side by side from its first column, in one launch each way.

    The arguments name the parts in their order. The first three kinds are returned as heads, `[B, T, heads, head_dim]`.

    Args:
        packed: what a projection made.
        head_dim: of all heads.
        unit_norm: convolutions, without bias, of the first parts: each head gets unit norm after its own.
        convolved: convolutions of the next parts.
        heads: how many heads each of the next parts has: columns as they are, contiguous on a GPU.
        flat: widths of the last parts, `[B, T, width]`: views of `packed`.
    """
    convolutions = (*unit_norm, *convolved)
    parts = [
        *(Part(layer.out_channels // head_dim, head_dim, Form.UNIT_NORM) for layer in unit_norm),
        *(Part(layer.out_channels // head_dim, head_dim, Form.COPY) for layer in convolved),
        *(Part(count, head_dim, Form.COPY) for count in heads),
        *(Part(1, width) for width in flat),
    ]
    weight = join_rows(*(layer.weight.squeeze(1) for layer in convolutions))
    results = convolve_heads(packed, weight, parts)
    in_heads = len(parts) - len(flat)
    return *results[:in_heads], *(x.squeeze(2) for x in results[in_heads:])
