"""What a sweep does about a Ray that fails it, with a stand-in for Ray; tests/cluster/ray.sh runs a real one."""

import multiprocessing

import pytest
from command_line import TINY, records, start_run_py

from mixerlab.sweeps.launch import ray_tasks
from mixerlab.sweeps.launch.processes import Work
from mixerlab.sweeps.launch.ray_tasks import Options, run_in_tasks

# As Ray, as far as the driver knows it. `init` is told how to fail.
STAND_IN = """
import os, time
from types import SimpleNamespace

exceptions = SimpleNamespace(RayError=type("RayError", (Exception,), {}))

def init(fails):
    global how
    how = fails
    if how == "refuses":
        raise ConnectionError("there is no cluster here")
    if how == "does not start":
        time.sleep(600)

def remote(**options):
    return lambda function: SimpleNamespace(remote=lambda work, number, overrides: number)

def nodes():
    return [{"NodeID": "ours", "Alive": how != "drops the node", "Resources": {"CPU": 1}}]

def wait(references, num_returns, timeout):
    if how == "ends the process":
        os._exit(7)
    if how == "hangs":
        time.sleep(600)
    return ([] if how == "drops the node" else references), []

def get(reference):
    raise exceptions.RayError("the worker died")

def get_runtime_context():
    return SimpleNamespace(get_node_id=lambda: "ours")

def shutdown():
    pass
"""
FAILURES = {
    "refuses": (ValueError, r"Ray did not start \(there is no cluster here\)"),
    "does not start": (ValueError, "Ray gave no answer in 20 s"),
    "drops the node": (RuntimeError, "the Ray cluster was lost: the process connected to it ended with exit status 1"),
    "ends the process": (RuntimeError, "lost: the process connected to it ended with exit status 7"),
    "hangs": (RuntimeError, "the Ray cluster was lost: it gave no answer in 20 s"),
}
JOBS = [["seed=0"], ["seed=1"]]


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "ray.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(ray_tasks, "GRACE", 0.1)
    return lambda how: run_in_tasks(JOBS, 0, Work(None, None, None, {}), Options({"fails": how}, {"num_cpus": 1}))


@pytest.mark.parametrize(
    "how", [pytest.param(name, marks=[] if name == "drops the node" else pytest.mark.slow) for name in FAILURES]
)
def test_a_ray_that_fails_is_one_line(run, monkeypatch, capfd, how):
    for name in ("START_SECONDS", "SILENCE_SECONDS"):
        monkeypatch.setattr(ray_tasks, name, 20)  # the driver needs some to start
    kind, message = FAILURES[how]
    with pytest.raises(kind, match=message):
        run(how)
    assert not multiprocessing.active_children()
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert ("the node is no part of the Ray cluster any more" in said) == (how == "drops the node")


def test_a_job_that_ray_gives_up_has_failed(run):
    results = run("not")
    assert [str(result._return_value) for result in results] == ["RayError: the worker died"] * 2


def test_without_ray(monkeypatch):
    monkeypatch.setattr(ray_tasks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs Ray: pip install"):
        run_in_tasks(JOBS, 0, Work(None, None, None, {}), Options({}, {}))


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
