"""Who may import whom: each part can be read, tested and lifted out without the others."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import TINY, run_py

ROOT = Path(__file__).parents[1]
OURS = {"mixerlab", "hydra_plugins"}
# Of our own packages, less the prefix `mixerlab.`; a name covers what is inside it.
MAY_IMPORT = {
    "kernels": {"kernels"},
    "mixers": {"kernels", "mixers.base", "mixers.projected", "mixers.rotary", "mixers.convolution", "mixers.gates"},
    "models": {"models", "kernels", "mixers.projected"},
    "tasks": {"tasks", "safe_files", "arguments", "interruption", "project", "refusals", "user_code"},
    "training": {"training", "kernels", "safe_files", "interruption", "user_code"},
    "sweeps": {"sweeps", "safe_files"},
}
# Of others.
MUST_NOT_IMPORT = {
    "kernels": {"lightning", "hydra", "omegaconf", "fla"},
    "mixers": {"lightning", "hydra", "omegaconf", "fla", "triton"},
    "models": {"lightning", "hydra", "omegaconf", "fla", "triton"},
    "tasks": {"torch", "lightning", "triton", "pandas"},
    "training": {"hydra", "omegaconf", "triton", "fla"},
    "sweeps": {"torch", "lightning", "triton", "hydra"},
}


def imported(source: str) -> set[str]:
    """The modules that a source names, relative imports refused: `from a.b import c` counts as `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            if node.module != "mixerlab":
                names.add(node.module)
            elif (members := {alias.name for alias in node.names}) != {"require_prefix"}:  # which every folder calls
                names |= {f"mixerlab.{member}" for member in members}
    return names


def forbidden(package: str, source: str) -> set[str]:
    """What a module of `package` with this source imports and must not."""

    def within(name, allowed):
        return any(name == other or name.startswith(f"{other}.") for other in allowed)

    return {
        name
        for name in imported(source)
        if (name.split(".")[0] in OURS and not within(name.removeprefix("mixerlab."), MAY_IMPORT[package]))
        or within(name, MUST_NOT_IMPORT[package])
    }


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_stay_within_the_rules(package):
    broken = {str(path.relative_to(ROOT)): forbidden(package, path.read_text()) for path in sources(package)}
    assert not {path: names for path, names in broken.items() if names}


def sources(package):
    found = sorted((ROOT / package).rglob("*.py"))
    assert found
    return found


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("training", "from mixerlab.mixers.attn import Attention"),
        ("training", "def late():\n    import hydra.utils"),
        ("kernels", "import mixerlab.mixers.base"),
        ("mixers", "from mixerlab.mixers.attn import Attention"),
        ("mixers", "from mixerlab.models.stream import ResidualStream"),
        ("models", "from mixerlab.mixers.attn import Attention"),
        ("sweeps", "import torch.nn"),
        ("tasks", "from torch import Tensor"),
    ],
)
def test_a_broken_rule_is_noticed(package, source):
    assert forbidden(package, source)


@pytest.mark.parametrize("package", ["tasks", "sweeps"])
def test_imports_without_torch(package):
    """Data and tables also work where PyTorch is not installed, or takes too long to import."""
    modules = [".".join(("mixerlab", *path.relative_to(ROOT).with_suffix("").parts)) for path in sources(package)]
    modules = [name.removesuffix(".__init__") for name in modules]
    code = f"import sys; sys.modules['torch'] = None\nimport {', '.join(modules)}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_kernels_mixers_and_models_import_without_triton():
    """Triton comes only with Linux, and is imported only where its kernels run."""
    mixers = (f"mixerlab.mixers.{path.stem}" for path in (ROOT / "mixers").glob("[a-z]*.py"))
    modules = ", ".join(["mixerlab.kernels.parallax", "mixerlab.models.language_model", *mixers])
    code = f"import sys; sys.modules['triton'] = None\nimport {modules}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_other_libraries_do_not_find_our_kernels():
    """transformers, which fla imports, imports any `kernels` that it finds, to see its version."""
    code = "import mixerlab, importlib.util; assert importlib.util.find_spec('kernels') is None; import kernels"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError: import of kernels halted" in done.stderr


@pytest.mark.parametrize("folder", ["mixers", "models", "tasks", "training", "sweeps", "benchmarks"])
def test_a_folder_imported_under_its_bare_name_raises(folder):
    """As `mixers` beside `mixerlab.mixers`, its classes would be others, and `isinstance` would fail."""
    code = f"import mixerlab, sys; sys.path.insert(0, {str(ROOT)!r})\nimport {folder}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"ImportError: import mixerlab.{folder}, not {folder}" in done.stderr


LATE = {"torch", "lightning", "pandas", "matplotlib"}


def imported_by(code, cwd=ROOT):
    """Of LATE, what is in `sys.modules` when `code` ends or exits."""
    code = f"import atexit, sys\natexit.register(lambda: print('IMPORTED', *({LATE!r} & set(sys.modules))))\n{code}"
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("IMPORTED")[2].split())


COMMAND = "sys.argv = {}\nfrom mixerlab.cli import main\nmain()"


def test_help_imports_nothing_that_takes_seconds():
    assert imported_by(COMMAND.format(["mixerlab", "--help"])) == set()
    assert imported_by("import mixerlab") == set()
    assert "torch" in imported_by("import mixerlab\nmixerlab.SequenceMixer")


def test_a_finished_run_imports_neither_lightning_nor_pandas_nor_matplotlib(tmp_path):
    command = ["mixerlab", "mixer=attn", "task=icr", *TINY, f"results_dir={tmp_path}"]
    assert run_py(*command[1:]).code == 0
    assert imported_by(COMMAND.format(command)) <= {"torch"}


def test_the_plugins_import_nothing_of_ours():
    """Every Hydra program in the environment imports them."""
    code = "import hydra_plugins.mixerlab, sys; sys.exit(any(name.startswith('mixerlab') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("group", ["mixer", "task"])
def test_a_config_is_named_like_its_file(group):
    for path in (ROOT / "conf" / group).glob("*.yaml"):
        assert f"name: {path.stem}" in path.read_text().splitlines()
