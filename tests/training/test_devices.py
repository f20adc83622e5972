"""On a host with several GPUs, each process takes one, and the processes share them evenly."""

import os
import stat
import tempfile

import pytest
import torch

from mixerlab.training import trainer_config


@pytest.fixture
def claim(monkeypatch, tmp_path):
    """A function that claims a GPU as a new process would, on a host with two GPUs; returns the GPU and the lock."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))

    def as_a_new_process(visible=None):
        monkeypatch.setattr(trainer_config, "_held", [])
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
        trainer_config.claim_gpu()
        trainer_config.claim_gpu()  # a second claim of one process changes nothing
        (lock,) = trainer_config._held
        return os.environ["CUDA_VISIBLE_DEVICES"], lock

    return as_a_new_process


def test_processes_share_the_gpus_evenly(claim):
    claims = [claim() for _ in range(6)]
    assert [gpu for gpu, _ in claims] == ["0", "1", "0", "1", "0", "1"]
    for number in (0, 1, 3, 5):  # processes end: all of GPU 1, and one of GPU 0
        os.close(claims[number][1])
    assert sorted(claim()[0] for _ in range(4)) == ["0", "1", "1", "1"]


def test_only_visible_gpus_are_taken(claim):
    names = ("MIG-GPU-3f/1/0", "MIG-GPU-3f/2/0")
    assert [claim(", ".join(names))[0] for _ in range(3)] == [*names, names[0]]


def test_locks_of_another_user_work(claim, tmp_path, monkeypatch):
    """Whatever their umask; in a folder such as /tmp Linux refuses O_CREAT on them (fs.protected_regular)."""
    before = os.umask(0o077)
    try:
        first, _ = claim()
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("*.lock")} == {0o644}
    made, open_file = [], os.open

    def watched(path, flags, *mode):
        made.extend([path] if flags & os.O_CREAT else [])
        return open_file(path, flags, *mode)

    monkeypatch.setattr(os, "open", watched)
    second, _ = claim()
    assert first != second and len(made) == 1
