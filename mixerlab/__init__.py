"""Train any sequence mixer on the MAD tasks in minutes, and get the table.

    import mixerlab

    record = mixerlab.run("mixer=gdn", "task=icr", "experiment=quickstart")  # a run, as on the command line
    rows = mixerlab.collect("results")  # every record so far: a DataFrame, one row for each replica
    model = mixerlab.build_model("mixer=gdn", "task=icr")  # an untrained nn.Module
    loaded = mixerlab.load("results/runs/<run_id>")  # the trained model of a finished run, its task, config and scores

`SequenceMixer` and `Task` are the base classes of mixers and tasks. `run` raises `RunFailed` if training fails.
"""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixerlab.api import build_model, compose, run
    from mixerlab.loading import load
    from mixerlab.mixers.base import SequenceMixer
    from mixerlab.runs import RunFailed
    from mixerlab.sweeps.collect import collect
    from mixerlab.tasks.base import Task

__all__ = ["RunFailed", "SequenceMixer", "Task", "build_model", "collect", "compose", "load", "run"]

# In a checkout the subpackages are the folders beside this one; in an installed copy they are inside it.
if not (Path(__file__).parent / "mixers").is_dir():
    __path__.append(str(Path(__file__).parents[1]))
    # transformers, which fla imports, imports any `kernels` that it finds: it expects Hugging Face's library.
    _found = importlib.util.find_spec("kernels")
    if _found is not None and _found.origin == str(Path(__file__).parents[1] / "kernels" / "__init__.py"):
        sys.modules["kernels"] = None  # type: ignore[assignment]  # so that Python finds no such module

# Imported on first use: PyTorch and pandas take seconds, and `mixerlab --help` needs neither.
_MODULES = {
    "RunFailed": "mixerlab.runs",
    "SequenceMixer": "mixerlab.mixers.base",
    "Task": "mixerlab.tasks.base",
    "build_model": "mixerlab.api",
    "collect": "mixerlab.sweeps.collect",
    "compose": "mixerlab.api",
    "load": "mixerlab.loading",
    "run": "mixerlab.api",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'mixerlab' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """With the names that are imported on first use, so that completion offers them."""
    return sorted({*globals(), *__all__})


def require_prefix(package: str) -> None:
    """Raises ImportError where a folder of this package is imported under its bare name.

    Python would load it a second time: `mixers.base.SequenceMixer` would be another class than
    `mixerlab.mixers.base.SequenceMixer`, and `isinstance` would say False.
    """
    if not package.startswith("mixerlab."):
        raise ImportError(
            f"import mixerlab.{package}, not {package}; on the command line: python -m mixerlab.{package}.<module>"
        )
