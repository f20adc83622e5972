"""Seconds to the first training step of each mixer, from empty caches of Triton and torch.compile.

    python -m mixerlab.benchmarks.first_step [--mixers ...] [--length 128]

Each mixer is measured in a process of its own, from building the MAD model to the end of one captured step of three
replicas. Beside it, how many kernels Triton has compiled, and the seconds that their compiling takes in sum.
"""

import argparse
import json
import os
import tempfile
import time
from multiprocessing import get_context
from typing import Any

import torch

from mixerlab.benchmarks.measuring import options_on_gpu
from mixerlab.benchmarks.throughput import MIXERS, VOCAB, Trial, config
from mixerlab.config.building import TaskShape


def measure(mixer: str, length: int) -> None:
    """Prints a line; in a process of its own, whose caches are empty."""
    import triton

    compiled: list[tuple[float, str]] = []

    def listen(src: Any, times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            compiled.append((times.total / 1e6, src.name))

    triton.knobs.compilation.listener = listen
    torch.zeros((), device="cuda")
    started = time.perf_counter()
    trial = Trial(config(mixer), TaskShape(VOCAB, length), 3)
    trial.captured()(trial.rows[0])
    torch.cuda.synchronize()
    spent = time.perf_counter() - started
    row = {
        "mixer": mixer,
        "T": length,
        "first step s": round(spent, 2),
        "kernels": len(compiled),
        "compiling s": round(sum(seconds for seconds, _ in compiled), 2),
        "longest": [f"{name} {seconds:.2f}" for seconds, name in sorted(compiled, reverse=True)[:5]],
    }
    print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixers", nargs="+", default=MIXERS)
    parser.add_argument("--length", type=int, default=128)
    args = options_on_gpu(parser)
    for mixer in args.mixers:
        with tempfile.TemporaryDirectory() as empty:
            os.environ |= {"TRITON_CACHE_DIR": f"{empty}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{empty}/inductor"}
            process = get_context("spawn").Process(target=measure, args=(mixer, args.length))
            process.start()
            process.join()


if __name__ == "__main__":
    main()
