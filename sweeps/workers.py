"""The processes in which a sweep's launcher runs its cells."""

import math


def keep_process() -> None:
    """Lets this process run one cell after another, however it grows.

    joblib takes a worker that has grown by 300 MB for leaking, where psutil is installed, and starts another. Ours
    grow by compiled kernels and by data, and a new one needs ten seconds to import PyTorch and to start CUDA: a sweep
    of 330 runs on four GPUs lost 33 times that. joblib has no option for it, only this number.
    """
    from joblib.externals.loky import process_executor  # loaded already where joblib started this process

    process_executor._MAX_MEMORY_LEAK_SIZE = math.inf
