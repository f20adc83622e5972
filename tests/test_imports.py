"""Who may import whom: each part can be read, tested and lifted out without the others."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import TINY, run_py

ROOT = Path(__file__).parents[1]
# The floors of `mixerlab`, from the ground up, and what their modules must not import. Each imports itself and lower
# ones only; the modules of `mixerlab/` itself are the top.
_TORCHLESS = ("torch", "lightning", "triton")
FLOORS = {
    "kernels": ("lightning", "hydra", "omegaconf", "fla"),
    "mixers": ("lightning", "hydra", "omegaconf", "fla", "triton"),
    "models": ("lightning", "hydra", "omegaconf", "fla", "triton"),
    "analysis": ("lightning", "hydra", "omegaconf", "fla", "triton"),
    "records": (*_TORCHLESS, "hydra"),
    "training": ("hydra", "omegaconf", "triton", "fla"),
    "tasks": (*_TORCHLESS, "hydra", "omegaconf", "pandas"),
    "config": ("triton",),
    "checks": ("lightning", "triton"),
    "sweeps.tables": (*_TORCHLESS, "hydra"),
    "sweeps.figures": (*_TORCHLESS, "hydra"),
    "sweeps.report": (*_TORCHLESS, "hydra"),
    "sweeps.launch": ("triton",),
    "": ("triton",),
    "benchmarks": (),
}
# A mixer imports no other mixer, only what they share.
SHARED_BY_MIXERS = {
    f"mixerlab.mixers.{name}" for name in ("base", "cache", "projected", "rotary", "convolution", "gates", "means")
}
FOLDERS = {"analysis": "mixerlab/analysis", "config": "mixerlab/config", "checks": "mixerlab/checks", "": "mixerlab"}


def sources(floor):
    folder = ROOT / FOLDERS.get(floor, floor.replace(".", "/"))
    found = sorted(folder.glob("*.py") if floor == "" else folder.rglob("*.py"))
    assert found
    return found


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("mixerlab", *parts) if parts[0] != "mixerlab" else parts).removesuffix(".__init__")


def imported(path):
    """What a file names in imports, in functions too: of `from a.b import c` it is `a.b.c`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name, package):
    return name == package or name.startswith(f"{package}.")


def floor_of(name):
    inside = name.removeprefix("mixerlab").removeprefix(".")
    return next((floor for floor in FLOORS if floor and within(inside, floor)), "")


def forbidden(floor, path):
    floors = list(FLOORS)
    for name in imported(path):
        if name == "mixerlab":  # the package alone, for its place and its version
            continue
        if within(name, "mixerlab"):
            is_another_mixer = floor == floor_of(name) == "mixers" and not any(
                within(name, module) for module in SHARED_BY_MIXERS
            )
            if is_another_mixer or floors.index(floor_of(name)) > floors.index(floor):
                yield name
        elif any(within(name, package) for package in FLOORS[floor]):
            yield name


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_go_down_only(floor):
    broken = {str(path.relative_to(ROOT)): list(forbidden(floor, path)) for path in sources(floor)}
    assert not {path: names for path, names in broken.items() if names}


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT / "src", capture_output=True, text=True, check=False)


def test_data_and_tables_work_without_torch():
    floors = ("tasks", "records", "sweeps.tables", "sweeps.figures", "sweeps.report")
    modules = ", ".join(name_of(path) for floor in floors for path in sources(floor))
    done = run_python(f"import sys; sys.modules['torch'] = None\nimport {modules}")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_kernels_mixers_and_models_import_without_triton():
    """Triton comes only with Linux, and is imported only where its kernels run."""
    mixers = (f"mixerlab.mixers.{path.stem}" for path in (ROOT / "mixers").glob("[a-z]*.py"))
    modules = ", ".join(["mixerlab.kernels.parallax", "mixerlab.models.language_model", *mixers])
    done = run_python(f"import sys; sys.modules['triton'] = None\nimport {modules}")
    assert done.returncode == 0, done.stderr


LATE = {"torch", "torch._dynamo", "lightning", "pandas", "matplotlib"}


def imported_by(code):
    """Of LATE, what is in `sys.modules` when `code` ends or exits."""
    at_exit = f"atexit.register(lambda: print('GOT', *({LATE!r} & set(sys.modules))))"
    done = run_python(f"import atexit, sys\n{at_exit}\n{code}")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("GOT")[2].split())


COMMAND = "sys.argv = {}\nfrom mixerlab.cli import main\nmain()"


def test_help_imports_nothing_that_takes_seconds():
    assert imported_by(f"import mixerlab\n{COMMAND.format(['mixerlab', '--help'])}") == set()


@pytest.mark.slow
def test_a_finished_run_imports_neither_lightning_nor_pandas_nor_matplotlib(tmp_path):
    command = ["mixerlab", "mixer=attn", "task=icr", *TINY, f"results_dir={tmp_path}"]
    assert run_py(*command[1:], draws=True).code == 0
    assert imported_by(COMMAND.format(command)) <= {"torch"}


def test_a_plugin_imports_nothing_of_ours():
    """Every Hydra program in the environment imports it."""
    done = run_python("import hydra_plugins.mixerlab, sys; sys.exit('mixerlab' in sys.modules)")
    assert done.returncode == 0, done.stderr
