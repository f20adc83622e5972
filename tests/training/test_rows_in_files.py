"""Splits that lie in a file train as those in memory do, also if a run goes on in the middle of a pass over them."""

import numpy as np
from tiny_training import LENGTH, VOCAB, equal, fit, interrupted

REPLICAS = [(1e-2, 0), (3e-3, 5)]


def in_file(folder, test_length):
    splits = {}
    for seed, (split, rows) in enumerate({"train": 70, "val": 20, "test": 21}.items()):
        length = test_length if split == "test" else LENGTH
        np.save(folder / f"{split}.npy", np.random.default_rng(seed).integers(0, VOCAB, (rows, length + 1), np.uint8))
        rows = np.load(folder / f"{split}.npy", mmap_mode="r")
        splits[split] = rows[:, :-1], rows[:, 1:]
    return splits


def test_as_in_memory_and_without_interruption(tmp_path):
    data = in_file(tmp_path, test_length=13)
    settings = {"eval_every": 9, "trained_rows": 410, "checkpoint_every": 0}
    resumed, steps = interrupted(REPLICAS, tmp_path / "broken", 28, data=data, **settings)
    assert steps == 28 + 2  # from step 27 on, of 29: a pass has 5
    in_memory = {split: tuple(np.array(rows, np.int64) for rows in own) for split, own in data.items()}
    plain = fit(REPLICAS, tmp_path / "plain", data=in_memory, **settings)
    assert equal(resumed, plain)
    assert plain.metrics[plain.metrics["replica"] == 0]["step"].tolist() == [9, 18, 27, 29]
