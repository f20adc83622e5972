"""What a process does in place of a sweep's work: it defers SIGTERM. Imports nothing that takes a second."""

import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path


def serve(connection: Connection, threads: int) -> None:
    """Takes a job, whose overrides are a folder and how many seconds SIGTERM is deferred; then the file `saved-N`."""
    connection.recv()
    number, (folder, seconds) = connection.recv()

    def save(*_):
        time.sleep(float(seconds))
        Path(folder, f"saved-{number}").touch()
        raise SystemExit

    signal.signal(signal.SIGTERM, save)
    Path(folder, f"ready-{number}").touch()
    time.sleep(60)
