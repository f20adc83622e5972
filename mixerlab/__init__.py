"""Train any sequence mixer on the MAD tasks in minutes, and get the table.

    import mixerlab

    record = mixerlab.run("mixer=gdn", "task=icr", "experiment=quickstart")  # a run, as on the command line
    rows = mixerlab.collect("results")  # every record so far: a DataFrame, one row for each replica
    mixerlab.curves("results")  # their training curves: a DataFrame, one row for each replica and epoch
    mixerlab.table("results")  # the report's table of them: a DataFrame
    mixerlab.check(MyMixer)  # raises what `mixerlab check` would say
    model = mixerlab.build_model("mixer=gdn", "task=icr")  # an untrained nn.Module; or mixer=MyMixer(128)
    loaded = mixerlab.load("results/runs/<run_id>")  # the trained model of a finished run, its task, config and scores

`SequenceMixer` and `Task` are the base classes of mixers and tasks; `Score` says what a task is judged by. `run`
raises `RunFailed` if training fails.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixerlab.api import build_model, check, run
    from mixerlab.config.compose import compose
    from mixerlab.loading import load
    from mixerlab.mixers.base import SequenceMixer
    from mixerlab.records.schema import Score
    from mixerlab.sweeps.report.report import table
    from mixerlab.sweeps.tables.collect import collect, curves
    from mixerlab.tasks.base import Task
    from mixerlab.train import RunFailed

__all__ = ["RunFailed", "Score", "SequenceMixer", "Task", "build_model", "check", "collect", "compose", "curves"]
__all__ += ["load", "run", "table"]

# Imported on first use: PyTorch and pandas take seconds, and `mixerlab --help` needs neither.
_MODULES = {
    "RunFailed": "mixerlab.train",
    "Score": "mixerlab.records.schema",
    "SequenceMixer": "mixerlab.mixers.base",
    "Task": "mixerlab.tasks.base",
    "build_model": "mixerlab.api",
    "check": "mixerlab.api",
    "collect": "mixerlab.sweeps.tables.collect",
    "compose": "mixerlab.config.compose",
    "curves": "mixerlab.sweeps.tables.collect",
    "load": "mixerlab.loading",
    "run": "mixerlab.api",
    "table": "mixerlab.sweeps.report.report",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'mixerlab' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """The API, also what is imported on first use, so that completion offers it and nothing else."""
    return list(__all__)
