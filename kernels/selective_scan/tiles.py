"""How the Triton scan is cut into tiles, without Triton, so that shapes can be traced where it is absent."""

from typing import NamedTuple


class Tiles(NamedTuple):
    """The blocks of one kernel: time steps, channels, how many of the N states lie side by side in a warp, warps,
    and how many tiles are in flight to shared memory.
    """

    block_t: int
    block_c: int
    lanes: int
    warps: int
    stages: int


def padded(state: int) -> int:
    """N rounded up to a power of two, at least 4."""
    return max(4, 1 << (state - 1).bit_length())


def forward_tiles(state: int) -> Tiles:
    """Up to 16 states of a channel in one thread, so that no sum crosses threads where N is at most 16."""
    return Tiles(block_t=4, stages=4, **_threads(state))


def backward_tiles(state: int) -> Tiles:
    """The same threads, so that only the sums over channels cross them.

    `block_t` divides that of the forward kernel, which saves the state that often.
    """
    return Tiles(block_t=2, stages=3, **_threads(state))


def _threads(state: int) -> dict[str, int]:
    """One warp, a thread for up to 16 states of a channel."""
    lanes = max(1, padded(state) // 16)
    return {"block_c": 32 // lanes, "lanes": lanes, "warps": 1}
