"""Small operators fused into single launches: what a model does between its matrix products."""

from kernels.fused.cross_entropy import cross_entropy
from kernels.fused.embedding import embedding
from kernels.fused.rms_norm import add_rms_norm, rms_norm
from kernels.fused.rotary import rotary
from kernels.fused.swiglu import swiglu, swiglu_packed

__all__ = ["add_rms_norm", "cross_entropy", "embedding", "rms_norm", "rotary", "swiglu", "swiglu_packed"]
