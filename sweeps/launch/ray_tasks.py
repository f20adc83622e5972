"""The cells of a sweep as tasks of Ray, on this host or on the nodes of a cluster.

Only a separate process, the driver, talks to Ray: when its cluster is gone, Ray ends the process that is connected
to it or waits without end, and it puts handlers of its own in place of ours. So the driver says every second that it
is still part of the cluster, and a sweep that hears nothing gives it up. The tasks end with the driver, and the driver
ends with the sweep, even if that is killed.
"""

import importlib.util
import itertools
import math
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from mixerlab.records.errors import message_of, type_and_message
from mixerlab.sweeps.launch.executors import Ended, Train, attempt
from mixerlab.sweeps.launch.processes import Child, end, end_with_parent

if TYPE_CHECKING:
    from mixerlab.sweeps.launch.cells import Cell

START_SECONDS = 120.0  # for importing Ray, and for starting it on this host; Ray itself tries a dead address forever
SILENCE_SECONDS = 15.0  # of the driver, after which the cluster is lost
POLL_SECONDS = 1.0
GRACE = 10.0  # seconds that the driver has to leave the cluster: killed, it would leave agents of a Ray of its own


class RayTasks:
    """An executor of Ray tasks. If the cluster is lost, so are the cells that it had.

    `ray` has `init` and `remote`, the arguments of these two functions of Ray.
    """

    slots: float = math.inf

    def __init__(self, train: Train, ray: Mapping[str, dict[str, Any]]):
        if importlib.util.find_spec("ray") is None:
            raise ValueError("hydra/launcher=ray_tasks needs Ray: pip install 'mixerlab[cluster]'")
        self.train, self.init, self.remote = train, ray["init"], ray["remote"]
        self.driver: Child | None = None
        self.is_connected, self.patience_until = False, 0.0  # whether and when the driver was heard
        self.cells: dict[int, Cell] = {}
        self.numbers = itertools.count()

    def submit(self, cell: "Cell") -> None:
        if self.driver is None:
            self.driver = Child(_drive, self.init, self.remote)
            self.is_connected, self.patience_until = False, time.monotonic() + START_SECONDS
        number = next(self.numbers)
        self.cells[number] = cell
        self.driver.send((number, self.train, cell.cfg))

    def poll(self, seconds: float) -> list[Ended]:
        if self.driver is None:
            time.sleep(seconds)
            return []
        if not self.driver.connection.poll(seconds) and time.monotonic() < self.patience_until:
            return []
        if (answers := self.driver.receive()) is not None:
            self.is_connected, self.patience_until = True, time.monotonic() + SILENCE_SECONDS
            return [Ended(self.cells.pop(number), *answer) for number, answer in answers]
        is_silent = self.driver.process.is_alive()
        reason = "it gave no answer" if is_silent else f"the process connected to it {self.driver.ending}"
        if is_silent:
            self.driver.process.kill()  # Ray hangs: it would not leave the cluster either
        self.stop()
        if not self.is_connected:
            address = self.init.get("address")
            again = f"; once there is a cluster at hydra.launcher.ray.init.address={address}, the same command goes on"
            raise ValueError(f"Ray did not start: {reason}" + (again if address is not None else ""))
        lost, self.cells = self.cells.values(), {}
        return [Ended(cell, error=f"the Ray cluster was lost: {reason}", is_lost=True) for cell in lost]

    def stop(self) -> None:
        if self.driver is not None:
            self.driver.connection.close()  # which ends it, once it has left the cluster
            self.driver.process.join(GRACE)
            end([self.driver])
            self.driver = None


def _drive(connection: Connection, init: dict[str, Any], remote: dict[str, Any]) -> None:
    """What the driver does: gives cells to Ray and their results to the sweep, until that closes the connection."""
    end_with_parent(GRACE)
    import ray

    try:
        try:
            ray.init(**init)
            task = ray.remote(**remote)(attempt)
        except Exception as error:
            sys.exit(f"Ray: {message_of(error)}")
        _say_what_is_missing(remote)
        connection.send([])  # it is connected
        numbers: dict[Any, int] = {}
        while True:
            while connection.poll(0 if numbers else POLL_SECONDS):
                number, train, cfg = connection.recv()
                numbers[task.remote(train, cfg)] = number
            ended = ray.wait(list(numbers), num_returns=len(numbers), timeout=POLL_SECONDS)[0] if numbers else []
            if ray.get_runtime_context().get_node_id() not in {node["NodeID"] for node in _nodes()}:
                sys.exit("the node is no part of the Ray cluster any more")
            connection.send([(numbers.pop(reference), _answer(reference)) for reference in ended])
    except (EOFError, OSError, KeyboardInterrupt):
        return  # the sweep has ended, or is about to
    finally:
        ray.shutdown()


def _answer(reference: Any) -> tuple[str | None, str | None]:
    """What `attempt` gave, or why Ray has given it up."""
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:  # its process or its node died more often than Ray tries
        return None, type_and_message(error)


def _nodes() -> list[dict[str, Any]]:
    """The nodes of the cluster; hangs if there is none."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _say_what_is_missing(remote: dict[str, Any]) -> None:
    """If no node has what one task needs, Ray waits until there is one."""
    needs = {"CPU": remote.get("num_cpus", 1), "GPU": remote.get("num_gpus", 0)} | (remote.get("resources") or {})
    if not any(all(node["Resources"].get(name, 0) >= number for name, number in needs.items()) for node in _nodes()):
        wanted = ", ".join(f"{number:g} {name}" for name, number in needs.items() if number)
        print(f"no node of the Ray cluster has {wanted}, as hydra.launcher.ray.remote asks: waiting", file=sys.stderr)
