"""Compiling the kernels of a computation ahead of it, several at once."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Within it Triton's kernels are compiled in threads, and not launched; at its end they are ready.

    A computation inside it leaves nothing to compile for the same one later. Its own results are of no use: what its
    kernels should have written is what was in memory.
    """
    import triton  # here, because Triton is optional
    from triton.runtime._async_compile import active_mode

    launch = triton.JITFunction.run
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        mode = triton.AsyncCompileMode(pool)

        def compile_only(kernel: Any, *arguments: Any, warmup: bool, **options: Any) -> Any:
            before = active_mode.set(mode)  # in this thread: a backward runs in another
            try:
                return launch(kernel, *arguments, warmup=True, **options)
            finally:
                active_mode.reset(before)

        with mode, mock.patch.object(triton.JITFunction, "run", compile_only):
            yield
