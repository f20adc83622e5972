"""Small operators fused into single launches, and a linear layer whose weight gradient fills a GPU."""

from mixerlab.kernels.fused.cross_entropy import cross_entropy
from mixerlab.kernels.fused.embedding import embedding
from mixerlab.kernels.fused.gates import gates
from mixerlab.kernels.fused.heads import Form, Part, rotary_heads, split_heads
from mixerlab.kernels.fused.linear import join_rows, linear
from mixerlab.kernels.fused.mlp import swiglu_mlp
from mixerlab.kernels.fused.rms_norm import add_rms_norm, rms_norm
from mixerlab.kernels.fused.swiglu import swiglu, swiglu_packed

__all__ = [
    "Form",
    "Part",
    "add_rms_norm",
    "cross_entropy",
    "embedding",
    "gates",
    "join_rows",
    "linear",
    "rms_norm",
    "rotary_heads",
    "split_heads",
    "swiglu",
    "swiglu_mlp",
    "swiglu_packed",
]
