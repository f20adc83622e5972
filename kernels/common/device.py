"""What a launch asks about the GPU."""

from functools import cache

import torch

PROCESSORS_WITHOUT_A_GPU = 132  # those of an H100 or H200: what kernels are planned for in the interpreter


@cache
def processors(device: torch.device) -> int:
    """How many multiprocessors `device` has; PROCESSORS_WITHOUT_A_GPU for a CPU.

    Kernels divide long sums into about that many parts. So a GPU with another count adds in another order.
    """
    if device.type != "cuda":
        return PROCESSORS_WITHOUT_A_GPU
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def on_nvidia(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None


@cache
def launches_early(device: torch.device) -> bool:
    """Whether a kernel can wait on the GPU for the one before it (programmatic dependent launch, Hopper and later)."""
    return on_nvidia(device) and torch.cuda.get_device_capability(device) >= (9, 0)
