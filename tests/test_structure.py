"""How much a reader has to hold in mind: the files on the way of a run; and no two files import each other."""

import ast
import functools
import traceback
from pathlib import Path

from command_line import TINY, run_py

from mixerlab.training.steps import PopulationSteps

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


def test_few_files_lie_between_the_command_and_the_training_step(tmp_path, monkeypatch):
    found = []

    def train(steps, rows):
        found.extend(Path(frame.filename).resolve() for frame in traceback.extract_stack())
        raise KeyboardInterrupt

    monkeypatch.setattr(PopulationSteps, "train", train)
    run_py("mixer=attn", "task=icr", *TINY, f"results_dir={tmp_path}")
    files = {str(path.relative_to(ROOT)) for path in found if path in {ROOT / "run.py", *MODULES.values()}}
    assert {"run.py", "mixerlab/cli.py", "training/lit_module.py"} < files and len(files) <= 5, files


def test_no_two_files_import_each_other():
    reached = {name: behind(name) - {name} for name in MODULES}
    assert not {(one, other) for one in MODULES for other in reached[one] if one < other and one in reached[other]}
