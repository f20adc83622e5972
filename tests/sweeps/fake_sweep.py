"""A sweep over made-up cells, to be run in a process of its own and killed.

A cell appends its start and its end to `results_dir/log`, so that a test can see who ran when.
"""

import os
import random
import time
from pathlib import Path

import fakes

from mixerlab.records.claims import claim
from mixerlab.records.files import is_finished, run_folder, write_config, write_record
from mixerlab.records.identity import run_id

CELLS = [
    fakes.config(mixer=mixer, setting=setting)
    for mixer in ("attn", "gdn", "mesa")
    for setting in ("baseline", "seq_len-256")
]


def sweep(results_dir: Path, order: random.Random) -> None:
    """Until every cell is finished: claims one that is not, and runs it."""
    log = os.open(results_dir / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    folders = {run_folder(results_dir, run_id(config)): config for config in CELLS}
    while waiting := [folder for folder in folders if not is_finished(folder)]:
        folder = order.choice(waiting)
        with claim(folder) as ours:
            if ours and not is_finished(folder):
                os.write(log, f"start {folder.name} {os.getpid()}\n".encode())
                write_config(folder, folders[folder])
                time.sleep(order.uniform(0.03, 0.06))
                write_record(folder, fakes.record(folders[folder], [0.5, 0.6, 0.7]))
                os.write(log, f"end {folder.name} {os.getpid()}\n".encode())
        time.sleep(0.001)
