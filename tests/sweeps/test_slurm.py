"""Slurm jobs, with a stand-in for Slurm that runs them on this host; tests/cluster/slurm.sh runs a real one."""

import os
import sys
import time
from pathlib import Path

import pytest
import trainers

pytest.importorskip("submitit")

from mixerlab.sweeps.launch import slurm
from mixerlab.sweeps.launch.slurm import SlurmJobs

# A job is a file in `queue/` that holds its process; sbatch knows one job and arrays.
SBATCH = """
import os, re, subprocess, sys
queue, (path,) = os.environ["QUEUE"], sys.argv[1:]
text = open(path).read()
number = len(os.listdir(queue + "/../scripts")) + 1
script = f"{queue}/../scripts/{number}"  # the job's own, as Slurm's: submitit moves the one it gave
open(script, "w").write(text)
array = re.search(r"--array=0-(\\d+)", text)
for task in range(int(array[1]) + 1) if array else [None]:
    name = str(number) if task is None else f"{number}_{task}"
    own = {"SLURM_JOB_ID": name, "SLURM_LOCALID": "0", "SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    if task is not None:
        own |= {"SLURM_ARRAY_JOB_ID": str(number), "SLURM_ARRAY_TASK_ID": str(task)}
    line = f"bash {script}; [ -e {queue}/{name}.again ] || rm -f {queue}/{name}"
    job = subprocess.Popen(["bash", "-c", line], env=os.environ | own, start_new_session=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    open(f"{queue}/{name}", "w").write(str(job.pid))
print(f"Submitted batch job {number}")
"""
COMMANDS = {
    "srun": 'while [ "${1#-}" != "$1" ]; do case $1 in --output|--error) shift;; esac; shift; done; exec "$@"',
    "squeue": "ls $QUEUE",
    "scancel": 'for job in $QUEUE/*; do kill -KILL -- "-$(cat $job)"; rm $job; done',
    "scontrol": "touch $QUEUE/$2.again",  # requeue JOB: it stays in the queue
}


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """The folder of the jobs in the queue; commands are noted in `calls`."""
    monkeypatch.setattr(slurm, "ASK_SECONDS", 0.0)
    for name in ("bin", "queue", "scripts"):
        (tmp_path / name).mkdir()
    (tmp_path / "sbatch.py").write_text(SBATCH)
    for name, line in {**COMMANDS, "sbatch": f'exec {sys.executable} {tmp_path}/sbatch.py "$@"'}.items():
        replace(tmp_path / "bin" / name, f"echo {name} $* >> {tmp_path}/calls\n{line}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("QUEUE", str(tmp_path / "queue"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(trainers.__file__).parent), *sys.path]))
    return tmp_path / "queue"


def replace(command, line):
    command.write_text(f"#!/bin/bash\n{line}\n")
    command.chmod(0o755)


def jobs(folder, *whats):
    executor = SlurmJobs(trainers.train, folder, timeout_min=60, partition=None, array_parallelism=2)
    for what in whats:
        executor.submit(trainers.cell(what, folder))
    return executor


def test_cells_train_as_an_array_of_jobs(queue, tmp_path):
    executor = jobs(tmp_path)
    ended = trainers.all_ended(executor, [trainers.cell(what, tmp_path) for what in ("fine", "raise", "exit", "kill")])
    assert ended["fine"].error is None and ended["fine"].run_id is not None
    assert ended["raise"].error == "no such length" and ended["exit"].error == "SystemExit: 0"
    assert ended["kill"].is_lost and "no result of Slurm's job 1_3" in ended["kill"].error
    assert [one for one in ended if ended[one].is_lost] == ["kill"]
    (script,) = (tmp_path / "scripts").iterdir()
    assert f"--job-name={executor.name}" in script.read_text() and "--array=0-3%2" in script.read_text()
    executor.stop()
    assert "scancel" not in (tmp_path / "calls").read_text()  # nothing was left


def test_a_sweep_that_is_stopped_cancels_its_jobs(queue, tmp_path, capsys):
    executor = jobs(tmp_path, "wait")
    executor.poll(0)
    executor.stop()
    assert f"scancel --me --name={executor.name}" in (tmp_path / "calls").read_text() and not list(queue.iterdir())
    replace(tmp_path / "bin" / "scancel", "echo no route >&2; exit 1")
    executor.stop()
    assert "no route" in (said := capsys.readouterr().err) and f"squeue --me --name={executor.name}" in said


def test_a_preempted_job_is_queued_again_and_has_not_failed(queue, tmp_path):
    executor = jobs(tmp_path, "preempted")
    until = time.monotonic() + 60
    while not (raised := list(tmp_path.glob("raised-*"))):  # after the signal's handler, which asks for the requeue
        assert time.monotonic() < until and not executor.poll(0.1)
    assert [path.name for path in raised] == ["raised-Terminated"] and list(queue.glob("*.again"))
    for _ in range(3):
        assert not executor.poll(0.1)  # it is in the queue
    executor.stop()


def test_a_job_that_comes_back_into_the_queue_is_not_lost(queue, tmp_path):
    executor = jobs(tmp_path, "wait")
    assert not executor.poll(0)
    (job,) = queue.iterdir()
    for _ in range(2):
        away = job.rename(tmp_path / "away")
        assert not executor.poll(0)
        away.rename(job)
        assert not executor.poll(0)
    executor.stop()
