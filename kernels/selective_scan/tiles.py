"""The tile sizes of the Triton scan, without importing Triton: shapes can be traced where it is not installed."""

from typing import NamedTuple


class Tiles(NamedTuple):
    """The tile of one kernel and how it runs."""

    block_t: int  # time steps
    block_c: int  # channels
    lanes: int  # over how many threads the N elements of a channel's state are spread
    warps: int
    stages: int  # tiles in flight to shared memory


def padded(state: int) -> int:
    """N rounded up to a power of two, at least 4."""
    return max(4, 1 << (state - 1).bit_length())


def forward_tiles(state: int) -> Tiles:
    """Up to 16 elements of a channel's state in one thread: if N is at most 16, no sum crosses threads."""
    return Tiles(block_t=4, stages=4, **_threads(state))


def backward_tiles(state: int) -> Tiles:
    """The same threads as in the forward, so that only sums over channels cross them.

    `block_t` divides that of the forward kernel, which saves the state every so many steps.
    """
    return Tiles(block_t=2, stages=3, **_threads(state))


def _threads(state: int) -> dict[str, int]:
    """One warp, with a thread for up to 16 elements of a channel's state."""
    lanes = max(1, padded(state) // 16)
    return {"block_c": 32 // lanes, "lanes": lanes, "warps": 1}
