"""One GPU per process on a host with several."""

import fcntl
import os
import tempfile
from pathlib import Path

import torch

_held = []  # open lock files: a GPU is ours until this process ends


def claim_gpu() -> None:
    """Makes one GPU, that no other process claimed, the only one this process sees; nothing where there is one.

    Must run before CUDA starts in this process. The kernel keeps the lock and frees it however we end.

    Raises:
        RuntimeError: more processes than GPUs.
    """
    if _held or torch.cuda.device_count() < 2:
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    for gpu in gpus:
        path = Path(tempfile.gettempdir()) / f"mixerlab-gpu-{gpu}.lock"
        lock = os.open(path, os.O_RDONLY | os.O_CREAT)  # another user's file can be read, and so locked
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        _held.append(lock)
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        return
    raise RuntimeError(f"all {len(gpus)} GPUs are taken by other runs: start at most one process a GPU")
