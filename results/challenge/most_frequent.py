"""What a model scores on the challenge's recall that does not recall: the most frequent value of the row so far.

    python results/challenge/most_frequent.py

Needs the repository root on PYTHONPATH. Prints MAD's accuracy, which the tables have, on one batch of each level.
"""

import numpy as np
import torch

import mixerlab
from mixerlab.config.settings import build_task
from mixerlab.results.plan import RECALL, lengths
from mixerlab.training.metrics import macro_accuracy

ROWS = 128  # of a batch, which the metric depends on


def accuracy(name: str, level: str) -> float:
    task = build_task(mixerlab.compose(f"task={name}", f"task.setting={level}").task)
    inputs, targets = task.generate(ROWS, np.random.default_rng(0), "test")
    symbols = task.vocab_size - getattr(task, "noise_vocab_size", 0)  # the first half of them are keys
    wanted, predicted, right = counts = np.zeros((3, task.vocab_size), dtype=np.int64)
    for row, answers in zip(inputs, targets, strict=True):
        seen = np.zeros(task.vocab_size, dtype=int)
        for token, answer in zip(row, answers, strict=True):
            if answer >= 0:  # a key that was shown before
                guess = seen.argmax()
                wanted[answer] += 1
                predicted[guess] += 1
                right[guess] += guess == answer
            seen[token] += symbols // 2 <= token < symbols
    return macro_accuracy(torch.from_numpy(counts)[None]).item()


if __name__ == "__main__":
    for task_name in RECALL:
        for label in lengths(task_name):
            print(f"{task_name} {label}: {accuracy(task_name, label):.3f}")
