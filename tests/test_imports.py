"""Who may import whom: each part can be read, tested and lifted out without the others."""

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"kernels", "mixers", "tasks", "training", "sweeps", "benchmarks", "hydra_plugins", "run", "run_config"}
# Of our own packages; a name covers what is inside it.
MAY_IMPORT = {
    "kernels": {"kernels"},
    "mixers": {"kernels", "mixers.base", "mixers.layers"},
    "tasks": {"tasks"},
    "training": {"training", "kernels"},
    "sweeps": {"sweeps"},
}
# Of others.
MUST_NOT_IMPORT = {
    "kernels": {"lightning", "hydra", "omegaconf", "fla"},
    "mixers": {"lightning", "hydra", "omegaconf", "fla", "triton"},
    "tasks": {"torch", "lightning", "triton", "pandas"},
    "training": {"hydra", "omegaconf", "triton", "fla"},
    "sweeps": {"torch", "lightning", "triton", "hydra"},
}


def imported(source: str) -> set[str]:
    """The modules that a source names, relative imports refused: `from a.b import c` counts as `a.b`."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            names.add(node.module)
    return names


def forbidden(package: str, source: str) -> set[str]:
    """What a module of `package` with this source imports and must not."""

    def within(name, allowed):
        return any(name == other or name.startswith(f"{other}.") for other in allowed)

    return {
        name
        for name in imported(source)
        if (name.split(".")[0] in OURS and not within(name, MAY_IMPORT[package]))
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
        ("training", "from mixers.attn import Attention"),
        ("training", "def late():\n    import hydra.utils"),
        ("kernels", "import mixers.base"),
        ("mixers", "from mixers.attn import Attention"),
        ("sweeps", "import torch.nn"),
        ("tasks", "from torch import Tensor"),
    ],
)
def test_a_broken_rule_is_noticed(package, source):
    assert forbidden(package, source)


@pytest.mark.parametrize("package", ["tasks", "sweeps"])
def test_imports_without_torch(package):
    """Data and tables also work where PyTorch is not installed, or takes too long to import."""
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sources(package)]
    modules = [name.removesuffix(".__init__") for name in modules]
    code = f"import sys; sys.modules['torch'] = None\nimport {', '.join(modules)}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_kernels_and_mixers_import_without_triton():
    """Triton comes only with Linux, and is imported only where its kernels run."""
    modules = ", ".join(["kernels.parallax", *(f"mixers.{path.stem}" for path in (ROOT / "mixers").glob("*.py"))])
    code = f"import sys; sys.modules['triton'] = None\nimport {modules}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_distribution_named_kernels_is_not_installed():
    """Hugging Face's `kernels` has a top-level package of our own's name: one of them would hide the other,
    and transformers, seeing its metadata, would import ours instead and fail."""
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("kernels")


@pytest.mark.parametrize("group", ["mixer", "task"])
def test_a_config_is_named_like_its_file(group):
    for path in (ROOT / "conf" / group).glob("*.yaml"):
        assert f"name: {path.stem}" in path.read_text().splitlines()
