"""Which backend of an operator runs."""

import os

import torch
from torch import Tensor

BACKENDS = ("auto", "reference", "triton")
KERNEL_DTYPES = (torch.float32, torch.bfloat16)


def resolve_backend(backend: str, device: torch.device, why: str = "") -> str:
    """The backend that runs: `reference` (PyTorch) or `triton`.

    Args:
        backend: what the user asked for. `auto` is `triton` for a CUDA tensor if the kernel takes the inputs.
        device: that of the inputs.
        why: why the kernel does not take these inputs; empty if it does.

    Raises:
        ValueError: an unknown backend, or `triton` where it does not run, or for inputs that its kernel does not take.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} is unknown: choose one of {', '.join(BACKENDS)}")
    if backend == "auto":
        return "triton" if device.type == "cuda" and not why else "reference"
    if backend == "triton" and not runs_triton(device):
        why = f"device={str(device)!r} is not an NVIDIA GPU"
    if backend == "triton" and why:
        raise ValueError(f"backend='triton' cannot run here: {why}; choose backend='auto' or 'reference'")
    return backend


def runs_triton(device: torch.device) -> bool:
    """On a GPU, or anywhere in Triton's interpreter."""
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"


def why_not_triton(*tensors: Tensor) -> str:
    """Why kernels for float32 and bfloat16 do not take these tensors; empty if they do."""
    for x in tensors:
        if x.dtype not in KERNEL_DTYPES:
            return f"the kernel takes float32 and bfloat16, not {x.dtype}"
    return ""


def why_not_traced() -> str:
    """Why a kernel behind an `autograd.Function` does not run; empty if PyTorch is not compiling."""
    return "torch.compile cannot trace its rule for vmap" if torch.compiler.is_compiling() else ""
