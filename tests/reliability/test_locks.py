"""Claims say who holds them; file systems without locks, or with locks that do not hold, lose nothing."""

import errno
import fcntl
import os
import socket

import fakes
import pytest
from command_line import TINY, records, run_py

from mixerlab import train as runs
from mixerlab.records.claims import claim, holder, is_claimed
from mixerlab.records.files import run_folder

ATTN = ("mixer=attn", "task=icr", *TINY, "trainer.epochs=1")


def test_a_claim_says_who_holds_it(tmp_path):
    assert not is_claimed(tmp_path / "new") and not (tmp_path / "new").exists()  # asking leaves nothing
    with claim(tmp_path) as ours:
        assert ours and is_claimed(tmp_path)
        assert holder(tmp_path).startswith(f"process {os.getpid()} on {socket.gethostname()} since 20")
    assert not is_claimed(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"5", b"\xff", b'{"host": 1}', b"[" * 5000])
def test_a_claim_that_does_not_say_who(tmp_path, content):
    (tmp_path / ".claim").write_bytes(content)
    assert holder(tmp_path) == "a process that has not said which"
    with claim(tmp_path) as ours:
        assert ours


def test_a_single_run_says_who_trains_it(tmp_path):
    run_id = run_py(*ATTN, f"results_dir={tmp_path}", "dry_run=true").out.split("/")[-1].split(":")[0]
    with claim(run_folder(tmp_path, run_id)):
        outcome = run_py(*ATTN, f"results_dir={tmp_path}")
    assert outcome.code == 0 and f"(process {os.getpid()} on {socket.gethostname()} since" in outcome.err


def test_a_sweep_waits_no_longer_than_it_is_told(tmp_path):
    grid = ("-m", *ATTN, f"results_dir={tmp_path}")
    run_id = run_py(*grid, "dry_run=true").out.split()[0]
    with claim(run_folder(tmp_path, run_id)):
        outcome = run_py(*grid, "wait=0")
    assert outcome.code == 1 and "another process still trains it after wait=0 seconds" in outcome.err
    assert f"process {os.getpid()} on " in outcome.err and "1 of 1 run failed" in outcome.err


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_one_line(tmp_path, monkeypatch, number):
    def no_locks(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    for start in ((), ("-m",)):
        outcome = run_py(*start, *ATTN, f"results_dir={tmp_path}")
        assert outcome.code == 1 and "the file system has no locks" in outcome.err and "results_dir=DIR" in outcome.err
        assert "Traceback" not in outcome.err and not records(tmp_path)


def test_where_locks_do_not_hold_one_of_two_publishes(tmp_path, monkeypatch):
    """Another host trains the same cell meanwhile, and is done first."""
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, operation: None)
    train, others = runs._measure, []

    def train_twice(*arguments):
        if not others:
            others.append(None)
            runs.run(arguments[0].cfg)
            others[0] = records(tmp_path)
        return train(*arguments)

    monkeypatch.setattr(runs, "_measure", train_twice)
    outcome = run_py(*ATTN, f"results_dir={tmp_path}")
    assert outcome.code == 0 and "another process has written this run's record meanwhile; it stays" in outcome.err
    assert records(tmp_path) == others[0]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links(tmp_path, monkeypatch, number):
    def no_links(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_links)
    folder = run_folder(tmp_path, fakes.run_id(fakes.config()))
    record = fakes.record(fakes.config(), [0.5, 0.6, 0.7])
    fakes.write_record(folder, record)
    with pytest.raises(FileExistsError):
        fakes.write_record(folder, record)
    assert [path.name for path in folder.iterdir()] == ["record.json"]
