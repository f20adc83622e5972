"""Cells without configs, and what processes do in place of training them. Imports nothing that takes a second."""

import os
import signal
import time
from pathlib import Path


class FakeCell:
    def __init__(self, **attributes):
        vars(self).update(attributes)


def cell(what: str, folder: Path | str = "", **more) -> FakeCell:
    return FakeCell(cfg={"what": what, "folder": str(folder), **more}, run_id=what)


def all_ended(executor, cells):
    """What came of these cells, by what they do; they are submitted as there are slots."""
    ended, waiting, until = {}, list(cells), time.monotonic() + 60
    number = len(waiting)
    while len(ended) < number:
        assert time.monotonic() < until
        while waiting and len(waiting) + len(ended) > number - executor.slots:
            executor.submit(waiting.pop(0))
        ended |= {one.cell.cfg["what"]: one for one in executor.poll(0.5)}
    return ended


def train(cfg: dict) -> str:
    """Gives the number of its process; or fails, in one of many ways."""
    what, folder = cfg["what"], Path(cfg["folder"])
    errors = {"raise": ArithmeticError("no such length"), "interrupt": KeyboardInterrupt(), "exit": SystemExit(0)}
    if what in errors:
        raise errors[what]
    if what == "preempted":
        try:
            os.kill(os.getpid(), signal.SIGUSR2)
            time.sleep(60)
        except BaseException as error:
            (folder / f"raised-{type(error).__name__}").touch()
            raise
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "kill with child":
        if os.fork() == 0:  # it has its parent's end of the connection
            time.sleep(30)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "wait":
        (folder / f"ready-{os.getpid()}").touch()
        time.sleep(60)
    return str(os.getpid())
