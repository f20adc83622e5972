"""One GPU per process on a host with several."""

import fcntl
import itertools
import os
import tempfile
from pathlib import Path

import torch

_held = []  # open lock files: our share of a GPU is ours until this process ends


def claim_gpu() -> None:
    """Makes one GPU the only one that this process sees, of those that the fewest processes claimed.

    With at most as many processes as GPUs each has its own; of more, several share one. Nothing happens on a host
    with one GPU or none. Must run before CUDA starts in this process. The operating system keeps the lock and frees
    it however we end.
    """
    if _held or torch.cuda.device_count() < 2:
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    for share, gpu in ((share, gpu) for share in itertools.count(1) for gpu in gpus):
        path = Path(tempfile.gettempdir()) / f"mixerlab-gpu-{gpu}-{share}.lock"
        lock = os.open(path, os.O_RDONLY | os.O_CREAT)  # another user's file can be read, and so locked
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        _held.append(lock)
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        return
