"""The wheel: what it holds, and that it works where there is nothing but it and its dependencies."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from command_line import ROOT, TINY, statuses
from test_readme import write_files

NOT_PACKAGED = {"tests", "results"}  # folders at the root


@pytest.fixture(scope="module")
def tracked():
    """The files of this checkout, without what git ignores, and without a virtual environment of any name."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("only git knows which files are part of the package")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    environments = {path.parent.name for path in ROOT.glob("*/pyvenv.cfg")}
    names = [Path(name) for name in listed.split("\0") if name and (ROOT / name).exists()]
    return [name for name in names if name.parts[0] not in environments]


@pytest.fixture(scope="module")
def source(tracked, tmp_path_factory):
    """A copy of the tracked files, but for results: a build folder here could hold old ones."""
    folder = tmp_path_factory.mktemp("source")
    for path in tracked:
        if path.parts[0] != "results":
            (folder / path.parent).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, folder / path, follow_symlinks=False)
    return folder


def built_wheel(source, out):
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(out), str(source))
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    return built_wheel(source, tmp_path_factory.mktemp("dist"))


def pip(*arguments):
    command = [sys.executable, "-m", "pip", *arguments, "--quiet", "--no-deps", "--no-index"]
    subprocess.run(command, check=True, capture_output=True)


def test_the_wheel_holds_the_tracked_files_and_nothing_else(wheel, tracked):
    expected = {"mixerlab/py.typed": Path("mixerlab/py.typed")}
    for path in tracked:
        folder = path.parts[0]
        if len(path.parts) > 1 and folder not in NOT_PACKAGED and path.suffix in (".py", ".yaml"):
            inside = path if folder in ("mixerlab", "hydra_plugins") else "mixerlab" / path
            expected[inside.as_posix()] = path
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert held == set(expected)
        assert {name for name, path in expected.items() if archive.read(name) != (ROOT / path).read_bytes()} == set()
    assert {name.partition("/")[0] for name in held} == {"mixerlab", "hydra_plugins"}
    assert "hydra_plugins/__init__.py" not in held  # a namespace: other plugins of Hydra live there too


@pytest.mark.slow
def test_a_wheel_of_the_sdist_holds_the_same(source, wheel, tmp_path):
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert not [name for name in archive.getnames() if "/tests/" in name]  # of which it would be a part
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(built_wheel(sdist, tmp_path)) as other:
        assert set(one.namelist()) == set(other.namelist())


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """The `bin` of a virtual environment with the wheel, its dependencies and another `kernels`, not this checkout."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    bin_folder = folder / "bin"
    pip("--python", str(bin_folder / "python"), "install", "--ignore-installed", str(wheel))
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    # The dependencies: those that this process runs with. Its own .pth files, such as an editable install's, are not
    # read there.
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    (packages / "kernels").mkdir()  # Hugging Face's package of this name
    (packages / "kernels" / "__init__.py").write_text("")
    return bin_folder


@pytest.fixture
def execute(environment, tmp_path):
    def execute(program, *arguments, **options):
        env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "TRITON_INTERPRET")}
        command = [str(environment / program), *map(str, arguments)]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return execute


LAUNCHER = ("hydra/launcher=processes", "hydra.launcher.n_jobs=1")


@pytest.mark.slow
def test_a_project_of_ones_own_in_an_empty_folder(execute, tmp_path):
    write_files(tmp_path)
    execute("mixerlab", "--config-dir", "conf", "-m", "mixer=ema,parallax", "task=delay", *TINY, *LAUNCHER)
    assert statuses(tmp_path / "results") == {("ema", "delay"): "finished", ("parallax", "delay"): "finished"}
    found = execute("python", "-c", "import kernels, mixerlab; print(kernels.__file__, mixerlab.__path__)")
    assert str(ROOT) not in found and found.count("site-packages") == 2


@pytest.mark.slow
def test_a_checkout_runs_its_own_code_beside_the_wheel(execute, tmp_path):
    """Its workers find the project's `mixers/`, a folder without `__init__.py`, which ours at the root would hide."""
    write_files(tmp_path)
    after = "import mixerlab.mixers.attn as attn; print(f'FROM {mixerlab.__file__} {attn.__file__}')"
    shown = execute("python", "-i", ROOT / "run.py", "--help", input=f"import mixerlab\n{after}\n")
    assert f"FROM {ROOT / 'src/mixerlab/__init__.py'} {ROOT / 'src/mixerlab/mixers/attn.py'}" in shown

    execute("python", ROOT / "run.py", "--config-dir", "conf", "-m", "mixer=ema", "task=icr,cmp", *TINY, *LAUNCHER)
    assert statuses(tmp_path / "results") == {("ema", "icr"): "finished", ("ema", "cmp"): "finished"}
