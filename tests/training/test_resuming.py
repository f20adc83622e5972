"""A training that is interrupted goes on from its last checkpoint, and ends as if nothing had happened."""

import signal

import numpy as np
from tiny_training import LENGTH, VOCAB, checkpoint_of, equal, fit, interrupted, splits

from mixerlab.training.callbacks import ResumePoint
from mixerlab.training.optimizers import Muon


def test_an_interrupted_training_continues_from_its_last_epoch(tmp_path, caplog):
    """Replicas that diverged or are perfect stay frozen; only the interrupted epoch is trained again."""
    replicas = [(2e-2, 0), (1e-3, 0), (1e30, 1)]
    settings = {"data": splits(), "epochs": 8, "stop_when_perfect": True, "checkpoint_every": 0}
    with caplog.at_level("INFO"):
        resumed, steps = interrupted(replicas, tmp_path / "broken", 28, **settings)  # in the sixth epoch
    checkpoint = checkpoint_of(replicas, tmp_path / "broken")
    assert f"continuing from {checkpoint}, after epoch 5 of 8" in caplog.messages
    unbroken = fit(replicas, tmp_path / "unbroken", **settings)
    assert equal(resumed, unbroken) and steps == 28 + 15
    assert resumed.resumed_after_s > 0 == unbroken.resumed_after_s
    passes = [divmod(replica["steps"], 5) for replica in unbroken.replicas]  # of 70 rows, 16 a step but 6 in the last
    assert unbroken.tokens == LENGTH * sum(70 * whole + 16 * more for whole, more in passes)
    assert 0 < resumed.tokens < unbroken.tokens and resumed.seconds > 0 and resumed.peak_memory is None
    behind_the_end = fit(replicas, tmp_path / "broken", **settings)
    assert behind_the_end.metrics.equals(unbroken.metrics) and behind_the_end.tokens == 0
    rows_of = unbroken.metrics["replica"].value_counts()
    assert rows_of[2] == 1 and rows_of[0] <= 5 and rows_of[1] == 8  # two were frozen before the failure


def test_the_time_of_all_trainings_before_is_added_up(tmp_path):
    point = ResumePoint(tmp_path / "resume.ckpt", every=0, at_end=False)
    point.load_state_dict({"spent_s": 1000.0})
    assert 1000 < point.state_dict()["spent_s"] < 2000


def test_a_cluster_around_it_changes_nothing(tmp_path, monkeypatch):
    """Lightning takes no signal, no checkpoint and no argument of its Trainer from the surroundings."""
    handlers = set()

    class Looks(Muon):
        def step(self, closure=None):
            handlers.add(signal.getsignal(signal.SIGUSR1))
            super().step(closure)

    plain = fit([(1e-3, 0)], tmp_path / "plain", epochs=2)
    slurm = {"NTASKS": "4", "PROCID": "3", "JOB_ID": "1", "JOB_NAME": "train", "LOCALID": "3", "NODEID": "0"}
    for name, value in {f"SLURM_{key}": value for key, value in slurm.items()}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PL_TRAINER_LIMIT_TRAIN_BATCHES", "0")
    place = tmp_path / "cluster"
    place.mkdir()
    (place / "hpc_ckpt_1.ckpt").write_bytes(b"of Lightning")
    assert fit([(1e-3, 0)], place, epochs=2, optimizer=Looks).metrics.equals(plain.metrics)
    assert handlers == {signal.getsignal(signal.SIGUSR1)}


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
