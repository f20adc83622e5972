"""What a sweep does about a Ray that fails it, with a stand-in for Ray; tests/cluster/ray.sh runs a real one."""

import multiprocessing

import pytest
import trainers

from mixerlab.sweeps.launch import ray_tasks
from mixerlab.sweeps.launch.ray_tasks import RayTasks

# As Ray, as far as the driver knows it: tasks run at once. `init` is told how to fail.
STAND_IN = """
from types import SimpleNamespace

exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}))
answers = {}

def init(fails):
    global how
    how = fails

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
    return lambda how: RayTasks(trainers.train, {"init": {"fails": how}, "remote": {"num_cpus": 1}})


def all_ended(executor, *whats):
    return trainers.all_ended(executor, map(trainers.cell, whats))


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


def test_with_the_cluster_its_cells_are_lost(make):
    ended = all_ended(make("drops the node"), "first", "second")
    assert all(one.is_lost and "ended with exit status 1" in one.error for one in ended.values())
    assert not multiprocessing.active_children()
