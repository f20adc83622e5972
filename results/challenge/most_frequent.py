"""What a model scores on `icr_challenge` that does not recall: the most frequent value of the row so far.

    python results/challenge/most_frequent.py

Needs the repository root on PYTHONPATH. Prints the share of right answers on 100 test rows of each level.
"""

import numpy as np

import mixerlab
from mixerlab.results.plan import lengths
from mixerlab.tasks.settings import build_task


def accuracy(level: str, rows: int = 100) -> float:
    task = build_task(mixerlab.compose("task=icr_challenge", f"task.setting={level}").task)
    inputs, targets = task.generate(rows, np.random.default_rng(0), "test")
    right = asked = 0
    for row, answers in zip(inputs, targets, strict=True):
        counts = np.zeros(task.vocab_size, dtype=int)
        for position, (token, answer) in enumerate(zip(row, answers, strict=True)):
            if answer >= 0:  # a key that was shown before
                asked += 1
                right += int(counts.argmax() == answer)
            counts[token] += position % 2  # keys and values alternate
    return right / asked


if __name__ == "__main__":
    for level in lengths("icr_challenge"):
        print(f"{level}: {accuracy(level):.3f}")
