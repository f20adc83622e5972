"""How much a reader has to hold in mind: the ways of a run and of its config, and that no files import each other."""

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


def stays(call, takes, until):
    """The files that whoever follows a value opens, in order, also to return, until nothing is left to do.

    Args:
        call: passes the value on.
        takes: whether an argument is the value; only functions that get it are entered.
        until: at which call the way ends.
    """
    calls = [([], "")]  # of those that are not left yet: the calls inside, and the file, if it was entered

    def leave():
        inside, file = calls.pop()
        calls[-1][0].extend([(file, inside)] if file else inside)

    def follow(frame, event, result):
        code = frame.f_code
        if event == "call":
            if until(frame):
                sys.setprofile(None)
                raise SystemExit
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            is_entered = file_of(code) and any(takes(frame.f_locals[name]) for name in names)
            calls.append(([], file_of(code) if is_entered else ""))
        elif event == "return" and len(calls) > 1:
            leave()

    sys.setprofile(follow)
    try:
        call()
    finally:
        sys.setprofile(None)
    while len(calls) > 1:
        leave()

    entered, last = [], 0

    def walk(file, inside):
        nonlocal last
        entered.append(file)
        last = len(entered)
        for one in inside:
            walk(*one)
            entered.append(file)

    for one in calls[0][0]:
        walk(*one)
    return [file for number, file in enumerate(entered[:last]) if number == 0 or file != entered[number - 1]]


def run_tiny():
    with tempfile.TemporaryDirectory() as folder:
        run_py("mixer=attn", "task=icr", *TINY, f"results_dir={folder}")


def stays_of_config():
    """Of a config or a group of it, from the command to the optimizer that trains."""

    def is_config(value):
        return isinstance(value, Mapping) and bool({"_target_", "model"} & set(value.keys())) and "hydra" not in value

    def is_optimizer(frame):
        if frame.f_code.co_name != "__init__" or file_of(frame.f_code) != "training/optimizers.py":
            return False
        return any(file.startswith("training/lit_module") for file in files_above(frame))

    return stays(run_tiny, is_config, until=is_optimizer)


def files_above(frame):
    """The files of ours on the stack, from the outermost on."""
    found = []
    while frame is not None:
        if file := file_of(frame.f_code):
            found.append(file)
        frame = frame.f_back
    return list(dict.fromkeys(reversed(found)))


def way_to_the_step():
    """The files of ours that are open when a training step begins; `python run.py` opens run.py before."""
    found = []

    def follow(frame, event, _):
        if event == "call" and file_of(frame.f_code) == "training/steps.py":
            above = files_above(frame)
            if "training/lit_module.py" in above:
                found.extend(above)
                sys.setprofile(None)
                raise SystemExit

    sys.setprofile(follow)
    try:
        run_tiny()
    finally:
        sys.setprofile(None)
    return ["run.py", *found]


def test_few_files_lie_between_the_command_and_the_training_step():
    found = way_to_the_step()
    assert found[-1] == "training/steps.py" and len(found) <= 6, found


def test_a_config_passes_few_hands():
    """In the first run of a process, which has nothing to remember."""
    _built.cache_clear()
    found = stays_of_config()
    assert {"mixerlab/cli.py", "mixerlab/config/values.py", "mixerlab/train.py"} <= set(found)
    assert len(found) <= 45, found


def test_no_two_files_import_each_other():
    assert not circles()
