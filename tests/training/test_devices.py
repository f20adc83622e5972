"""On a host with several GPUs, each process takes one that the fewest other processes use."""

import fcntl
import os
import stat
import tempfile

import pytest
import torch

from mixerlab.training import devices


@pytest.fixture
def claim(monkeypatch, tmp_path):
    """A function that claims a GPU as a new process would, on a host with two GPUs; returns the GPU and the lock.

    The processes have the same id, as those of containers may that share a folder /tmp. A claim that would wait for
    another's lock raises `BlockingIOError`.
    """
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda file, operation: flock(file, operation | fcntl.LOCK_NB))

    def as_a_new_process(visible=None):
        monkeypatch.setattr(devices, "_held", [])
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
        devices.claim_gpu()
        (lock,) = devices._held
        return os.environ["CUDA_VISIBLE_DEVICES"], lock

    return as_a_new_process


def test_each_process_gets_its_own_gpu_until_it_ends(claim, tmp_path):
    (first, lock), (second, _) = claim(), claim()
    assert (first, second) == ("0", "1")
    os.close(lock)
    assert claim()[0] == "0"
    assert len(list(tmp_path.glob("mixerlab-gpu-*.lock"))) == 2  # the lock file of the ended process is gone


def test_more_processes_than_gpus_share_them_evenly(claim):
    claims = [claim() for _ in range(6)]
    assert [gpu for gpu, _ in claims] == ["0", "1", "0", "1", "0", "1"]
    for number in (0, 1, 3, 5):  # all of GPU 1, and one of GPU 0
        os.close(claims[number][1])
    assert [claim()[0] for _ in range(3)] == ["1", "1", "0"]


@pytest.mark.parametrize("names", [("5", "7"), ("GPU-3f1c-9a", "GPU-3f1c-9b"), ("MIG-GPU-3f/1/0", "MIG-GPU-3f/2/0")])
def test_only_visible_gpus_are_taken(claim, names):
    assert [claim(", ".join(names))[0] for _ in range(3)] == [*names, names[0]]


def test_another_user_can_read_the_locks_whatever_the_umask(claim, tmp_path):
    before = os.umask(0o077)
    try:
        claim()
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("*.lock")} == {0o644}


def test_locks_of_another_user_are_opened_and_not_made(claim, tmp_path, monkeypatch):
    """In a folder such as /tmp Linux refuses O_CREAT on another user's file (fs.protected_regular)."""
    first, _ = claim()
    made, open_file = [], os.open

    def watched(path, flags, *mode):
        made.extend([path] if flags & os.O_CREAT else [])
        return open_file(path, flags, *mode)

    monkeypatch.setattr(os, "open", watched)
    second, _ = claim()
    (own,) = made
    assert first != second and own.name.startswith(f"mixerlab-gpu-{second}-user-")


def test_a_second_claim_of_one_process_changes_nothing(claim):
    gpu, _ = claim()
    devices.claim_gpu()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu and len(devices._held) == 1
