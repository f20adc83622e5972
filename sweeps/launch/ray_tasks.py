"""The cells of a sweep as tasks of Ray, on this host or on the nodes of a cluster.

Only a separate process, the driver, talks to Ray: when its cluster is gone, Ray ends the process that is connected
to it or waits without end, and it puts handlers of its own in place of ours. So the driver says every second that it
is still part of the cluster, and a sweep that hears nothing gives it up. The tasks end with the driver, and the driver
ends with the sweep, even if that is killed.
"""

import importlib.util
import multiprocessing
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from hydra.core.utils import JobReturn, JobStatus
from tqdm import tqdm

from mixerlab.records.errors import one_line, type_and_message
from mixerlab.sweeps.launch.processes import Work, end_of, end_with, run_job_of

START_SECONDS = 180.0  # for importing Ray, and for starting it on this host, which takes a minute on a busy one
CONNECT_SECONDS = 25.0  # for joining a cluster: Ray itself tries a dead address forever
SILENCE_SECONDS = 15.0  # of the driver, after which the cluster is lost
POLL_SECONDS = 1.0
GRACE = 10.0  # seconds that the driver has to leave the cluster: killed, it would leave agents of a Ray of its own


class Options(NamedTuple):
    """The arguments of `ray.init` and `ray.remote`."""

    init: dict[str, Any]
    remote: dict[str, Any]


def run_in_tasks(jobs: Sequence[Sequence[str]], first: int, work: Work, options: Options) -> list[JobReturn]:
    """Runs each job, a list of overrides, as a task.

    Args:
        jobs: given to Ray in this order.
        first: Hydra's number of the first one.
        work: what they have in common.
        options: of Ray.

    Returns:
        The results in the order of the jobs. A job that raised, or that Ray has given up, has failed.

    Raises:
        ValueError: Ray is not installed, there is no cluster at this address, or what `ray.init` and `ray.remote`
            refuse.
        RuntimeError: the cluster was lost; jobs may have ended before.
    """
    if importlib.util.find_spec("ray") is None:
        raise ValueError("hydra/launcher=ray_tasks needs Ray: pip install -e '.[cluster]'")
    context = multiprocessing.get_context("spawn")
    connection, theirs = context.Pipe()
    driver = context.Process(target=_drive, args=(theirs,))
    driver.start()
    theirs.close()  # so that its death closes the connection
    results: dict[int, JobReturn] = {}
    try:
        connection.send((jobs, first, work, options))
        for patience in (START_SECONDS, START_SECONDS if options.init.get("address") is None else CONNECT_SECONDS):
            if not connection.poll(patience):
                driver.kill()  # Ray hangs: it would not leave the cluster either
                raise ValueError(f"Ray gave no answer in {patience:.0f} s: {_cluster(options)}")
            refusal, note = connection.recv()
        if refusal is not None:
            raise ValueError(f"Ray did not start ({refusal}): {_cluster(options)}")
        if note is not None:
            tqdm.write(note, file=sys.stderr)
        while len(results) < len(jobs):
            if not connection.poll(SILENCE_SECONDS):
                driver.kill()
                raise RuntimeError(f"the Ray cluster was lost: it gave no answer in {SILENCE_SECONDS:.0f} s")
            for number, status, value in connection.recv():
                results[number] = JobReturn(status=status, _return_value=value)
    except (EOFError, ConnectionError):
        driver.join()
        assert driver.exitcode is not None  # it has ended
        raise RuntimeError(f"the Ray cluster was lost: the process connected to it {end_of(driver.exitcode)}") from None
    finally:
        connection.close()  # which ends the driver
        driver.join(GRACE)
        driver.kill()
        driver.join()
    return [results[number] for number in range(len(jobs))]


def _cluster(options: Options) -> str:
    address = options.init.get("address")
    if address is None:
        return "hydra.launcher.ray.init.address=null starts it on this host"
    return f"once there is a cluster at hydra.launcher.ray.init.address={address}, the same command goes on"


def _drive(connection: Connection) -> None:
    """What the driver does: gives the jobs to Ray and their results to the sweep, until there are no more."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a process that `run_in_tasks` started
    threading.Thread(target=end_with, args=(parent.sentinel, GRACE), daemon=True).start()
    import ray

    try:
        jobs, first, work, options = connection.recv()
        connection.send((None, None))  # from here on it is Ray that takes its time
        try:
            ray.init(**options.init)
            task = ray.remote(**options.remote)(run_job_of)
        except (ValueError, TypeError, ConnectionError, RuntimeError) as error:  # what Ray refuses
            connection.send((one_line(error), None))
            return
        connection.send((None, _note(options.remote)))
        numbers = {task.remote(work, first + number, list(job)): number for number, job in enumerate(jobs)}
        while numbers:
            ended, _ = ray.wait(list(numbers), num_returns=len(numbers), timeout=POLL_SECONDS)
            _check_membership()
            connection.send([(numbers.pop(reference), *_result(reference)) for reference in ended])
    except (EOFError, ConnectionError, KeyboardInterrupt):
        return  # the sweep has ended, or is about to
    finally:
        ray.shutdown()


def _check_membership() -> None:
    """Ends this process if its node is none of the cluster's, and hangs if there is no cluster."""
    import ray

    if ray.get_runtime_context().get_node_id() not in {node["NodeID"] for node in ray.nodes() if node["Alive"]}:
        sys.exit("the node is no part of the Ray cluster any more")


def _result(reference: Any) -> tuple[JobStatus, Any]:
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:  # its process or its node died more often than Ray tries
        return JobStatus.FAILED, RuntimeError(type_and_message(error))


def _note(remote: dict[str, Any]) -> str | None:
    """What to say if no node has what one task needs: Ray waits until there is one."""
    import ray

    needs = {"CPU": remote.get("num_cpus", 1), "GPU": remote.get("num_gpus", 0)} | (remote.get("resources") or {})
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(all(node.get(name, 0) >= number for name, number in needs.items()) for node in nodes):
        return None
    wanted = ", ".join(f"{number:g} {name}" for name, number in needs.items() if number)
    return f"no node of the Ray cluster has {wanted}, as hydra.launcher.ray.remote asks: waiting for one"
