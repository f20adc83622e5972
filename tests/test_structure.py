"""How much a reader has to hold in mind: the files on the way of a run and of its config; none import each other."""

import ast
import functools
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from command_line import TINY, run_py

from mixerlab.checks.buildable import _built

ROOT = Path(__file__).parents[1]


def modules():
    """The file of every module of ours, by its name; the folders of the package may be links, which we follow."""
    found = {f"mixerlab.{path.stem}": path for path in (ROOT / "mixerlab").glob("*.py")}
    for folder in (path for path in (ROOT / "mixerlab").iterdir() if path.is_dir()):
        for path in folder.resolve().rglob("*.py"):
            parts = "mixerlab", folder.name, *path.relative_to(folder.resolve()).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


@functools.cache
def imports(name):
    """The modules of ours that a module names in an import, in functions too; a package, if it is asked for a name."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {full if full in MODULES else node.module for full in names.values()}
    return found & set(MODULES) - {name}


def behind(name):
    """The module and all that it imports, directly or not."""
    found, waiting = set(), {name}
    while waiting:
        one = waiting.pop()
        found.add(one)
        waiting |= imports(one) - found
    return found


def circles():
    """Pairs of modules that each stand behind the other."""
    reached = {name: behind(name) - {name} for name in MODULES}
    return {(one, other) for one in MODULES for other in reached[one] if one < other and one in reached[other]}


@functools.cache
def file_of(code):
    """The file of a function of ours; None for other code, the bodies of classes and comprehensions."""
    path = Path(code.co_filename).resolve()
    is_function = code.co_flags & 1 and "<" not in code.co_name + code.co_filename
    if not is_function or not path.is_relative_to(ROOT) or "site-packages" in path.parts or path.parent.name == "tests":
        return None
    return str(path.relative_to(ROOT))


def run_tiny():
    with tempfile.TemporaryDirectory() as folder:
        run_py("mixer=attn", "task=icr", *TINY, f"results_dir={folder}")


def files_above(frame):
    """The files of ours on the stack, from the outermost on."""
    found = []
    while frame is not None:
        if file := file_of(frame.f_code):
            found.append(file)
        frame = frame.f_back
    return list(dict.fromkeys(reversed(found)))


def followed(see):
    """Trains a tiny run, and calls `see(frame)` at each call of ours until it gives True."""

    def follow(frame, event, _):
        if event == "call" and file_of(frame.f_code) and see(frame):
            sys.setprofile(None)
            raise SystemExit

    sys.setprofile(follow)
    try:
        run_tiny()
    finally:
        sys.setprofile(None)


def way_to_the_step():
    """The files of ours that are open when a training step begins; `python run.py` opens run.py before."""
    found = []

    def see(frame):
        if file_of(frame.f_code) != "training/steps.py" or "training/lit_module.py" not in files_above(frame):
            return False
        found.extend(files_above(frame))
        return True

    followed(see)
    return ["run.py", *found]


def hands_of_config():
    """The files with a function that gets a config or a group of it, until the optimizer that trains is made."""
    found = {}

    def is_config(value):
        return isinstance(value, Mapping) and bool({"_target_", "model"} & set(value.keys())) and "hydra" not in value

    def see(frame):
        code, file = frame.f_code, file_of(frame.f_code)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(is_config(frame.f_locals[name]) for name in names):
            found[file] = None
        is_optimizer = code.co_name == "__init__" and file == "training/optimizers.py"
        return is_optimizer and "training/lit_module.py" in files_above(frame)

    followed(see)
    return list(found)


def test_few_files_lie_between_the_command_and_the_training_step():
    found = way_to_the_step()
    assert found[-1] == "training/steps.py" and len(found) <= 6, found


def test_a_config_passes_few_hands():
    """In the first run of a process, which has nothing to remember."""
    _built.cache_clear()
    found = hands_of_config()
    assert {"mixerlab/cli.py", "mixerlab/config/values.py", "mixerlab/train.py"} <= set(found)
    assert len(found) <= 13, found


def test_no_two_files_import_each_other():
    assert not circles()
