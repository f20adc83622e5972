"""What all tests share: one thread, a seed, yamls that are read once, a user's yamls, no `gpu` tests without a GPU."""

import copy
import dataclasses
import os
from collections import Counter
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins

if not torch.cuda.is_available():
    # Kernels run in Triton's interpreter. Triton reads this when it is imported, as PyTorch does in several places.
    os.environ["TRITON_INTERPRET"] = "1"

import mixerlab.config.settings  # noqa: F401  # registers `${setting:...}`, as the command does

# The tensors of tests are tiny. A second thread waits longer than it computes, most of all on a busy machine.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start


def read_once(source):
    """Makes sources of this kind, of which Hydra parses each yaml for every command, parse it once."""
    known, read = {}, source._read_config

    def copied(self, path):
        place = self.provider, self.path, path
        found = known[place] = known.get(place) or read(self, path)
        return dataclasses.replace(found, config=copy.deepcopy(found.config))

    source._read_config = copied


def replace_language_once(interpreter):
    """Makes Triton's interpreter replace its language when a kernel starts, not again in each function it calls.

    That takes half of the interpreter's time.
    """
    replace, language = interpreter._patch_lang, interpreter.tl
    whole = SimpleNamespace(__globals__={"tl": language, "core": language.core})
    interpreter._patch_lang = lambda function: replace(whole) if language.core.is_builtin(language.load) else None


if not torch.cuda.is_available() and find_spec("triton"):
    from triton.runtime import interpreter

    replace_language_once(interpreter)
Plugins.instance()  # finds the kinds of sources
read_once(SourcesRegistry.instance().resolve("pkg"))  # our yamls; those of a user are files


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items):
    """Of each test marked `sampled(n)`, marks all cases but every n-th as slow, from the first one on."""
    place = Counter()
    for item in items:
        if (sampled := item.get_closest_marker("sampled")) is not None:
            test = item.path, item.originalname
            if place[test] % sampled.args[0]:
                item.add_marker(pytest.mark.slow)
            place[test] += 1
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(autouse=True)
def seeded():
    """What a test draws depends on no other test."""
    torch.manual_seed(0)


@pytest.fixture
def own(tmp_path):
    """Writes a yaml of one's own, `group/name`, and gives the options with which the command finds it."""

    def write(file, text):
        path = tmp_path / "conf" / f"{file}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return "--config-dir", str(tmp_path / "conf")

    return write
