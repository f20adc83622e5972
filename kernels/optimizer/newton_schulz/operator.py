"""The Triton kernels as a PyTorch operator, which compiled code calls as one opaque step."""

from functools import cache

import torch
import triton
from torch import Tensor

from mixerlab.kernels.common.registration import operator
from mixerlab.kernels.optimizer.newton_schulz.reference import EPS, QUINTIC
from mixerlab.kernels.optimizer.newton_schulz.triton_kernels import polar_read_kernel, polar_step_kernel

BLOCK = 128  # columns of X in one product


@operator(
    "polar_factors", like="flat", refusal="orthogonalise has no gradient with backend='triton': use backend='reference'"
)
def polar_factors(flat, sides: list[int], steps: int, dtype: torch.dtype):
    """`orthogonalise` for matrices of shapes `(sides[0], sides[1]), (sides[2], sides[3]), ...`."""
    replicas = len(flat)
    table = _table(tuple(sides), flat.device)
    blocks = len(table)
    short = max(16, triton.next_power_of_2(max(map(min, sides[::2], sides[1::2]))))
    sizes = {"SHORT": short, "BLOCK": BLOCK, "num_warps": 8 if short == 128 else 4}
    polar = torch.empty(flat.shape, device=flat.device)
    squares = torch.empty((replicas, blocks), device=flat.device)
    source, target = torch.empty((2, replicas, blocks, short, BLOCK), dtype=dtype, device=flat.device)
    polar_read_kernel[replicas, blocks](flat, flat.stride(0), source, squares, table, blocks, **sizes)
    for step in range(steps):
        polar_step_kernel[replicas, blocks](
            *(source, target, squares, polar, polar.stride(0), table, blocks),
            *(step == 0, step == steps - 1, EPS, *QUINTIC),
            **sizes,
        )
        source, target = target, source
    return polar


@cache  # without a limit: a captured graph reads its table by address, but does not keep it alive
def _table(sides: tuple[int, ...], device: torch.device) -> Tensor:
    """For each block its matrix's start, rows, columns and first block, and its index in the matrix; int32.

    The blocks of the longest matrices come first. If programs have to wait for a multiprocessor, then the short ones
    do.
    """
    entries, start, first = [], 0, 0
    for rows, columns in zip(sides[::2], sides[1::2], strict=True):
        blocks = triton.cdiv(max(rows, columns), BLOCK)
        entries += [(start, rows, columns, first, block) for block in range(blocks)]
        start += rows * columns
        first += blocks
    entries.sort(key=lambda entry: -max(entry[1:3]))
    return torch.tensor(entries, dtype=torch.int32, device=device)
