"""How the Triton scan is cut into tiles, without Triton, so that shapes can be traced where it is absent."""

from typing import NamedTuple


class Tiles(NamedTuple):
    """The blocks of one kernel: time steps, channels, how many of the N states lie side by side, warps."""

    block_t: int
    block_c: int
    lanes: int
    warps: int


def padded(state: int) -> int:
    """N rounded up to a power of two, at least 4."""
    return max(4, 1 << (state - 1).bit_length())


def forward_tiles(state: int) -> Tiles:
    """One channel per thread with all its states: no sum crosses threads."""
    return Tiles(block_t=8 if state <= 16 else 4, block_c=32, lanes=1, warps=1)


def backward_tiles(state: int) -> Tiles:
    """Sums over states and over channels both cross threads: splitting a warp 4 x 8 makes both short."""
    return Tiles(block_t=forward_tiles(state).block_t, block_c=16 if state <= 16 else 8, lanes=4, warps=1)
