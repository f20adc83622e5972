"""How much a reader has to hold in mind: the files on the way of a run; and no two files import each other."""

import functools
import traceback
from pathlib import Path

from command_line import ROOT, TINY, run_py
from test_imports import FLOORS, imported, name_of, sources

from mixerlab.training.steps import PopulationSteps

MODULES = {name_of(path): path for floor in FLOORS for path in sources(floor)}
del MODULES["mixerlab"]  # which imports what it offers when it is asked for


@functools.cache
def imports(name):
    named = (full if full in MODULES else full.rpartition(".")[0] for full in imported(MODULES[name]))
    return set(named) & set(MODULES) - {name}


def behind(name):
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
