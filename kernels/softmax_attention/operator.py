"""The kernels for short sequences as PyTorch operators."""

from mixerlab.kernels.common.addressing import unit_stride
from mixerlab.kernels.common.registration import operator, register_gradient
from mixerlab.kernels.common.triton_attention import short_constants, with_strides
from mixerlab.kernels.common.triton_elementwise import LOG2_E
from mixerlab.kernels.softmax_attention.triton_short import (
    short_attention_backward_kernel,
    short_attention_forward_kernel,
)

BLOCK = 64  # positions of a tile


@operator("short_attention", like="q")
def short_attention(q, k, v):
    """`softmax_attention` of a sequence that is short (`is_short`)."""
    batch, length, heads, head_dim = q.shape
    o = q.new_empty(q.shape)
    short_attention_forward_kernel[(batch * heads,)](
        *with_strides(*map(unit_stride, (q, k, v)), o),
        *(heads, length, head_dim, head_dim**-0.5 * LOG2_E.value),
        **short_constants(q, BLOCK),
    )
    return o


@operator(
    "short_attention_backward",
    like="q k v",
    refusal="softmax_attention of a short sequence cannot be differentiated twice on a GPU",
)
def short_attention_backward(d_o, q, k, v):
    """dQ, dK and dV, from the inputs and dO only."""
    batch, length, heads, head_dim = q.shape
    d_q, d_k, d_v = (x.new_empty(x.shape) for x in (q, k, v))
    short_attention_backward_kernel[(batch * heads,)](
        *with_strides(*map(unit_stride, (d_o, q, k, v)), d_q, d_k, d_v),
        *(heads, length, head_dim, head_dim**-0.5, head_dim**-0.5 * LOG2_E.value),
        **short_constants(q, BLOCK),
    )
    return d_q, d_k, d_v


register_gradient(short_attention, short_attention_backward)
