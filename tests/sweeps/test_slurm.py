"""What a sweep asks of Slurm, with stand-ins for its commands; tests/cluster/slurm.sh runs a real one."""

import contextlib
import sys

import pytest

from mixerlab.sweeps.launch import slurm
from mixerlab.sweeps.launch.slurm import SlurmFailed, slurm_jobs


class SlurmLauncher:
    """As submitit's, as far as a sweep knows it."""

    def __init__(self):
        self.params = {"name": "mixerlab"}


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Makes a command of Slurm's: a line of sh. There are no others, and calls are written to `tmp_path/calls`."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.01)

    def make(name, line):
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n{line}\n')
        path.chmod(0o755)

    return make


@pytest.fixture
def accounting(command):
    """Of the cluster `big`, and of another one."""
    command("sacct", "exit 0")
    command("scontrol", "echo 'ClusterName             = big'")
    command("sacctmgr", "echo small; echo big")


@pytest.fixture
def jobs(accounting):
    return slurm_jobs(SlurmLauncher())


def calls(tmp_path):
    return (tmp_path / "calls").read_text().splitlines()


def test_other_launchers_are_not_asked_for_accounting(command):
    assert slurm_jobs(object()) is None


def test_without_sacct(command):
    with pytest.raises(ValueError, match=r"there is no command `sacct`.*use hydra/launcher=processes"):
        slurm_jobs(SlurmLauncher())


def test_without_accounting(command):
    command("sacct", "echo Slurm accounting storage is disabled >&2; exit 1")
    with pytest.raises(ValueError, match=r"`sacct` failed \(Slurm accounting storage is disabled\).*slurm.conf"):
        slurm_jobs(SlurmLauncher())


def test_a_cluster_that_the_database_does_not_know(command, accounting):
    command("sacctmgr", "echo bigger")
    with pytest.raises(ValueError, match=r"does not know the cluster.*`sacctmgr add cluster big`, or use"):
        slurm_jobs(SlurmLauncher())


def test_a_database_that_does_not_answer(command, accounting):
    command("sacctmgr", "echo 'Connection refused' >&2; exit 1")
    with pytest.raises(ValueError, match=r"`sacctmgr` failed \(Connection refused\)"):
        slurm_jobs(SlurmLauncher())


def test_sacct_that_does_not_answer(command, monkeypatch):
    monkeypatch.setattr(slurm, "TIMEOUT", 0.1)
    command("sacct", f"exec {sys.executable} -c 'import time; time.sleep(60)'")
    with pytest.raises(ValueError, match="`sacct` gave no answer"):
        slurm_jobs(SlurmLauncher())


def test_jobs_of_two_sweeps_have_different_names(accounting):
    launchers = [SlurmLauncher(), SlurmLauncher()]
    with slurm_jobs(launchers[0]) as first, slurm_jobs(launchers[1]) as second:
        assert [launcher.params["name"] for launcher in launchers] == [first.name, second.name]
    assert first.name != second.name


def test_names_do_not_grow_with_the_batches_of_a_search(accounting):
    launcher, names = SlurmLauncher(), []
    for _ in range(4):
        with contextlib.suppress(ZeroDivisionError), slurm_jobs(launcher):
            names.append(launcher.params["name"])
            raise ZeroDivisionError  # what fails leaves the name as it was, too
    assert len(set(names)) == 4 and {len(name) for name in names} == {len("mixerlab-") + 8}
    assert launcher.params["name"] == "mixerlab"


def test_waits_until_the_queue_is_empty(command, jobs, tmp_path):
    polled = f"{tmp_path}/polled"
    command("squeue", f"[ -e {polled}2 ] || echo 7_1; [ ! -e {polled} ] || : > {polled}2; : > {polled}")
    jobs.wait()
    polls = [call for call in calls(tmp_path) if call.startswith("squeue")]
    assert polls == [f"squeue --me --noheader --name={jobs.name}"] * 3


def test_does_not_wait_for_a_slurm_that_is_gone(command, jobs):
    command("squeue", "echo Unable to contact slurm controller >&2; exit 1")
    with pytest.raises(SlurmFailed, match=r"^`squeue` failed \(Unable to contact slurm controller\)$"):
        jobs.wait()


def test_a_sweep_that_is_stopped_cancels_its_jobs(command, jobs, tmp_path):
    command("scancel", "exit 0")
    with pytest.raises(KeyboardInterrupt), jobs:
        raise KeyboardInterrupt
    assert calls(tmp_path)[-1] == f"scancel --me --name={jobs.name}"


def test_says_so_if_jobs_cannot_be_cancelled(command, jobs, capsys):
    with pytest.raises(KeyboardInterrupt), jobs:
        raise KeyboardInterrupt
    assert f"no command `scancel`: jobs may be left, see squeue --me --name={jobs.name}" in capsys.readouterr().err


def test_a_sweep_that_ends_cancels_nothing(command, jobs, tmp_path):
    with jobs:
        pass
    assert [call.split()[0] for call in calls(tmp_path)] == ["sacct", "scontrol", "sacctmgr"]
