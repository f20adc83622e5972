"""Small operators fused into single launches: what a block does between its matrix products."""

from kernels.fused.rms_norm import add_rms_norm, rms_norm

__all__ = ["add_rms_norm", "rms_norm"]
