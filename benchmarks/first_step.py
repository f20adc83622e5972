"""The time from a built population to its first captured step, from empty caches and for another vocabulary.

    python -m mixerlab.benchmarks.first_step [--mixers plain ema ...] [--length 128] [--replicas 3]

For each mixer one process with empty caches of Triton and Inductor makes the first step of a model with 16 tokens, and
then of one with 24 tokens, as the next cell of a sweep would; another process, which finds the caches filled, makes the
first step with 32 tokens. A line of JSON for each: seconds to the end of the first step, capturing included.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import torch

from mixerlab.benchmarks.throughput import MIXERS, Trial

VOCABS = (("empty caches", 16), ("same process", 24), ("new process", 32))


def first_step(mixer: str, length: int, replicas: int, vocab: int) -> dict:
    """Seconds to the end of the first captured step of a new population, and the notes of its record."""
    started = time.perf_counter()
    trial = Trial(mixer, length, replicas, vocab=vocab)
    trial.captured(trial.step)(trial.rows[0])
    torch.cuda.synchronize()
    return {"seconds": round(time.perf_counter() - started, 1), "note": "; ".join(dict.fromkeys(trial.notes))}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m mixerlab.benchmarks.first_step", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--mixers", nargs="+", default=MIXERS)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--only", nargs="+", help=argparse.SUPPRESS)  # in a process of its own: which of VOCABS
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    if args.only:
        for when, vocab in VOCABS:
            if when in args.only:
                (mixer,) = args.mixers
                row = {"mixer": mixer, "T": args.length, "replicas": args.replicas, "when": when}
                print(json.dumps(row | first_step(mixer, args.length, args.replicas, vocab)), flush=True)
        return
    for mixer in args.mixers:
        with tempfile.TemporaryDirectory() as folder:
            caches = {"TRITON_CACHE_DIR": f"{folder}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
            command = [sys.executable, "-m", "mixerlab.benchmarks.first_step", "--mixers", mixer]
            command += ["--length", str(args.length), "--replicas", str(args.replicas), "--only"]
            for names in (["empty caches", "same process"], ["new process"]):
                subprocess.run([*command, *names], env=os.environ | caches, check=True)


if __name__ == "__main__":
    main()
