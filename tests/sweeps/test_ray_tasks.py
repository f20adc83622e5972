"""What a sweep does about a Ray that fails it, with a stand-in for Ray; tests/cluster/ray.sh runs a real one."""

import multiprocessing
import time

import pytest
import trainers
from command_line import TINY, records, start_run_py

from mixerlab.sweeps.launch import ray_tasks
from mixerlab.sweeps.launch.ray_tasks import RayTasks

# As Ray, as far as the driver knows it: tasks run at once. `init` is told how to fail.
STAND_IN = """
import os, time
from types import SimpleNamespace

exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}))
answers = {}

def init(fails):
    global how
    how = fails
    if how == "refuses":
        raise ConnectionError("there is no cluster here")
    if how == "does not start":
        time.sleep(600)

def remote(num_cpus):
    def task(function):
        def submit(train, cfg):
            answers[len(answers)] = function(train, cfg)
            return len(answers) - 1
        return SimpleNamespace(remote=submit)
    return task

def nodes():
    return [{"NodeID": "ours", "Alive": how != "drops the node", "Resources": {"CPU": 1}}]

def wait(references, num_returns, timeout):
    if how == "ends the process":
        os._exit(7)
    if how == "hangs":
        time.sleep(600)
    return ([] if how == "drops the node" else references), []

def get(reference):
    if how == "gives up":
        raise exceptions.RayError("the worker died")
    return answers[reference]

def get_runtime_context():
    return SimpleNamespace(get_node_id=lambda: "ours")

def shutdown():
    pass
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    (tmp_path / "ray.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ray_tasks, "GRACE", 0.1)
    for name in ("START_SECONDS", "SILENCE_SECONDS"):
        monkeypatch.setattr(ray_tasks, name, 5)  # the driver needs some to start
    return lambda how: RayTasks(trainers.train, tmp_path, {"init": {"fails": how}, "remote": {"num_cpus": 1}})


def all_ended(executor, *whats):
    for what in whats:
        executor.submit(trainers.cell(what))
    ended, until = {}, time.monotonic() + 60
    while len(ended) < len(whats):
        assert time.monotonic() < until
        ended |= {one.cell.cfg["what"]: one for one in executor.poll(0.5)}
    return ended


def test_cells_train_and_fail_as_tasks(make):
    executor = make("not")
    ended = all_ended(executor, "fine", "raise")
    assert ended["fine"].run_id is not None and ended["raise"].error == "no such length"
    assert all_ended(executor, "exit")["exit"].error == "SystemExit: 0"  # the same driver has the next ones
    executor.stop()
    assert not multiprocessing.active_children()
    executor = make("gives up")
    one = all_ended(executor, "fine")["fine"]
    assert one.error == "RayError: the worker died" and not one.is_lost
    executor.stop()


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("drops the node", "the process connected to it ended with exit status 1"),
        pytest.param("ends the process", "ended with exit status 7", marks=pytest.mark.slow),
        pytest.param("hangs", "it gave no answer", marks=pytest.mark.slow),
    ],
)
def test_with_the_cluster_its_cells_are_lost(make, how, reason):
    ended = all_ended(make(how), "first", "second")
    assert all(one.is_lost and reason in one.error for one in ended.values())
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["refuses", "does not start"])
def test_a_ray_that_does_not_start_is_one_line(make, how, capfd):
    with pytest.raises(ValueError, match="Ray did not start: "):
        all_ended(make(how), "first")
    assert not multiprocessing.active_children()
    said = capfd.readouterr().err
    assert "Traceback" not in said and ("there is no cluster here" in said) == (how == "refuses")


def test_without_ray(monkeypatch, tmp_path):
    monkeypatch.setattr(ray_tasks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs Ray: pip install"):
        RayTasks(trainers.train, tmp_path, {"init": {}, "remote": {}})


@pytest.mark.slow
def test_a_sweep_by_ray(tmp_path):
    pytest.importorskip("ray")
    process = start_run_py(
        "-m", "mixer=attn", "task=icr", *TINY, "task.seq_len=16,24", f"results_dir={tmp_path}",
        "hydra/launcher=ray_tasks", "hydra.launcher.ray.remote.num_gpus=0",
    )  # fmt: skip
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert {record["status"] for record in records(tmp_path).values()} == {"finished"} and len(records(tmp_path)) == 2
