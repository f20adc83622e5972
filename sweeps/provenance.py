"""Where a record comes from: code, versions, machine, time. Nothing here is part of a result."""

import ast
import functools
import hashlib
import inspect
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import metadata
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
COMPUTING = ("mixers", "tasks", "kernels")  # our packages that make what a mixer or a task computes
PACKAGES = ("mixerlab", "torch", "triton", "lightning", "hydra-core", "numpy", "fla-core")


def provenance(
    *,
    started_at: datetime,
    wall_time_s: float,
    device: str,
    precision: str | None,
    backends: Mapping[str, str],
    code: Mapping[str, str],
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The `provenance` of a record.

    Args:
        started_at: when the run began, with a time zone.
        wall_time_s: seconds from then to now; what ran before a restart does not count.
        device: the name of the processor that trained.
        precision: the dtype of the products, None for a run that failed.
        backends: what computed the mixing (a kernel or PyTorch), by mixer. Other operators take their kernel
            wherever it can run, and are not listed.
        code: `code_of` the classes of mixer and task.
        notes: what happened on the way, such as a population halved for lack of memory.
    """
    return {
        "started_at": started_at.isoformat(timespec="seconds"),
        "wall_time_s": wall_time_s,
        "device": device,
        "precision": precision,
        "backends": dict(backends),
        "code": dict(code),
        "versions": versions(),
        **_git_state(),
        "command": shlex.join(sys.argv),
        "notes": list(notes),
    }


@functools.cache  # as for the state of git below
def code_of(part: type) -> str:
    """A hash of the module in which a class stands and of what that imports, blind to comments and docstrings.

    Of what it imports, and what that does, the modules of COMPUTING are in it, those named in functions too.
    """
    text, imported = _code_and_imports(Path(inspect.getfile(part)), part.__module__)
    code, waiting = {"": text}, set(imported)
    while waiting:
        name = waiting.pop()
        path = _ROOT.joinpath(*name.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name not in code and name.partition(".")[0] in COMPUTING and path.is_file():
            code[name], imported = _code_and_imports(path, name)
            waiting |= imported
    return hashlib.sha256(repr(sorted(code.items())).encode()).hexdigest()[:12]


@functools.cache  # for all mixers and tasks
def _code_and_imports(path: Path, name: str) -> tuple[str, frozenset[str]]:
    """The code of a module, and the names of modules and of what is in modules that it imports."""
    tree = ast.parse(path.read_text())
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            imported |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return ast.unparse(tree), frozenset(imported)


def versions() -> dict[str, str]:
    """The versions of Python and of the installed packages that a result depends on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@functools.cache  # the code that runs is the code of the time it was imported
def _git_state() -> dict[str, Any]:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"git_commit": git("rev-parse", "HEAD"), "git_dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):  # no git, or an installed copy outside a checkout
        return {"git_commit": None, "git_dirty": None}
