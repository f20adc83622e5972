"""`python run.py ...` without the seconds that a process needs to start, and what it leaves behind."""

import io
import json
import logging
import runpy
import signal
import subprocess
import sys
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from mixerlab.records.schema import Record
from mixerlab.training.callbacks import ResumePoint

ROOT = Path(__file__).parents[1]

# Overrides that make any run of `icr`, `mem` or `cmp` a matter of a second.
TINY = (
    "task.vocab_size=8",
    "task.seq_len=16",
    "task.num_train_examples=40",
    "task.num_val_examples=16",
    "task.num_test_examples=16",
    "model.d_model=16",
    "optimizer.lr=[0.01,0.001]",
    "trainer.epochs=3",
    "trainer.batch_size=16",
    "trainer.progress=false",
    "trainer.checkpoint_every=0",
)
ATTN = ("mixer=attn", "task=icr", *TINY)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


def run_py(*arguments: str, draws: bool = False) -> Outcome:
    """Runs `run.py` as `__main__` in this process; logging is left as it was found.

    `draws`: also the curves of a single run, a third of its time.
    """
    out, err, code = io.StringIO(), io.StringIO(), 0
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    undrawn = mock.patch("mixerlab.cli._figure", lambda folder, record: folder / "curves.png")
    with mock.patch.object(sys, "argv", [str(ROOT / "run.py"), *arguments]), nullcontext() if draws else undrawn:
        try:
            with redirect_stdout(out), redirect_stderr(err):
                runpy.run_path(str(ROOT / "run.py"), run_name="__main__")
        except SystemExit as stop:
            code = stop.code
        finally:
            logging.disable(logging.NOTSET)
            root.handlers[:] = handlers
            root.setLevel(level)
    if isinstance(code, str):  # what Python does with it at the end of a process
        code, message = 1, code
        err.write(f"{message}\n")
    return Outcome(code or 0, out.getvalue(), err.getvalue())


def ran(*arguments: str, **options: bool) -> Outcome:
    outcome = run_py(*arguments, **options)
    assert outcome.code == 0, outcome.err
    return outcome


def refusal(*arguments: str) -> str:
    """The one line with which a command is refused."""
    outcome = run_py(*arguments)
    assert outcome.code == 1 and outcome.err.startswith("error: ") and outcome.err.count("\n") == 1, outcome.err
    return outcome.err


def start_run_py(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "run.py", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell lets what it starts in the background ignore SIGINT, and that is inherited.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def stop_at_first_checkpoint(results_dir: Path, *arguments: str) -> None:
    """Interrupts a run as soon as there is a checkpoint to resume from; `test_kills` kills one at any moment."""
    write = ResumePoint._write

    def write_and_stop(*args):
        write(*args)
        raise KeyboardInterrupt

    with mock.patch.object(ResumePoint, "_write", write_and_stop):
        outcome = run_py(*arguments, f"results_dir={results_dir}")
    assert outcome.code == 128 + signal.SIGINT and list(results_dir.rglob("resume-*.ckpt")), outcome.err


def records(results_dir: Path) -> dict[str, dict]:
    """The records in a results folder by run_id."""
    return {path.parent.name: json.loads(path.read_text()) for path in results_dir.glob("runs/*/record.json")}


def statuses(results_dir):
    """{(mixer, task): status}, of valid records only."""
    found = {}
    for record in records(results_dir).values():
        Record.from_json(record)
        found[record["rows"][0]["mixer"], record["rows"][0]["task"]] = record["status"]
    return found


def result_of(results_dir: Path) -> tuple[dict, bytes]:
    """The only run in a results folder: its record without provenance, and its metrics.csv."""
    ((run_id, record),) = records(results_dir).items()
    del record["provenance"]
    return record, (results_dir / "runs" / run_id / "metrics.csv").read_bytes()
