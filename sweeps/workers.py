"""The processes in which a sweep's launcher runs its cells."""

import functools
import math
import os
import threading
import time


@functools.cache  # once a process
def keep_process() -> None:
    """Lets this process run one cell after another, however it grows, for as long as the sweep lives.

    joblib takes a worker that has grown by 300 MB for leaking, where psutil is installed, and starts another. Ours
    grow by compiled kernels and by data, and a new one needs ten seconds to import PyTorch and to start CUDA: a sweep
    of 330 runs on four GPUs lost 33 times that. joblib has no option for it, only this number.
    """
    from joblib.externals.loky import process_executor  # loaded already where joblib started this process

    process_executor._MAX_MEMORY_LEAK_SIZE = math.inf
    if process_executor._CURRENT_DEPTH > 0:  # 0 in the sweep itself
        threading.Thread(target=_end_after, args=(os.getppid(),), daemon=True).start()


def _end_after(parent: int) -> None:
    """Ends this process once its parent has: joblib's workers would train on, and keep their GPU for minutes."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
