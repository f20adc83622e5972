"""Prints which kernels Triton must build for each cell of a sequence: `python count_builds.py MIXER OPTIONS`.

The training and scoring steps of a population call their kernels as on a GPU, cell after cell. Nothing is compiled or
run: a hook records the builds that Triton would make and that no earlier cell has made. The result is JSON: the names
of the kernels for each cell. OPTIONS is a JSON object of options of the mixer.
"""

import json
import sys

import torch
from every_mixer import mixer_of
from triton import knobs
from triton.runtime import driver

from mixerlab.kernels.common import dispatch

resolve_as_asked = dispatch.resolve_backend


def resolve_as_on_a_gpu(backend, device, supported=True, why=""):
    return "triton" if supported else resolve_as_asked(backend, device, supported, why)


dispatch.resolve_backend = resolve_as_on_a_gpu  # before the operators import it

from compile_for_hopper import Hopper  # noqa: E402

import mixerlab.kernels.gated_delta_rule  # noqa: E402
import mixerlab.kernels.mesa  # noqa: E402
import mixerlab.kernels.parallax.projected  # noqa: E402
import mixerlab.kernels.softmax_attention  # noqa: E402
from mixerlab.models.language_model import LanguageModel  # noqa: E402
from mixerlab.models.stream import ALL  # noqa: E402
from mixerlab.training.datamodule import Examples  # noqa: E402
from mixerlab.training.optimizers import Muon  # noqa: E402
from mixerlab.training.population import Population  # noqa: E402
from mixerlab.training.schedules import Constant  # noqa: E402
from mixerlab.training.steps import PopulationSteps  # noqa: E402

# In this order: a later cell finds the builds of the earlier ones.
CELLS = {
    "first": {},
    "shorter": {"length": 112},
    "odd": {"length": 127},
    "long": {"length": 256},  # above 128, attention uses other kernels
    "longer": {"length": 512},
    "one replica": {"replicas": 1},
    "fewer examples": {"rows": 40},
    "fewer scored": {"scored": slice(96, 128)},
    "other vocabulary": {"vocabulary": 48},
    "odd vocabulary": {"vocabulary": 40},
    "other odd vocabulary": {"vocabulary": 56},
}
WIDTH, BATCH = 128, 16


def make_steps(mixer: str, options, length=128, replicas=3, vocabulary=64, rows=64, scored=ALL) -> None:
    options = options | ({"backend": "triton"} if mixer == "mamba" else {})

    def build():
        return LanguageModel(vocabulary, WIDTH, 2, lambda: mixer_of(mixer, WIDTH, **options))

    population = Population(build, range(replicas))
    optimizer = Muon(population, [1e-3] * replicas, Constant(), 100, ns_dtype=torch.bfloat16)
    tokens = torch.zeros(rows, length, dtype=torch.long)
    steps = PopulationSteps(population, optimizer, Examples(tokens, tokens[:, scored], scored), bf16=True)
    batch = torch.zeros(replicas, BATCH, dtype=torch.long)
    steps.train(batch)
    steps.score(batch)


def main(mixer: str, options: str) -> None:
    known, new = set(), set()

    def note(key, fn, **_) -> bool:
        if (fn.name, key) not in known:
            known.add((fn.name, key))
            new.add(fn.name)
        return True  # Triton then skips the compilation

    driver.set_active(Hopper())
    knobs.runtime.jit_cache_hook = note
    # These choose by the device, which is a CPU here.
    mixerlab.kernels.gated_delta_rule.gated_delta_rule_backend = mixerlab.kernels.mesa.mesa_backend = lambda *_: (
        "triton"
    )
    mixerlab.kernels.parallax.parallax_backend = mixerlab.kernels.parallax.projected.parallax_backend = lambda *_: (
        "triton"
    )
    mixerlab.kernels.softmax_attention.is_short = lambda device, dtype, length, head_dim: length <= 128
    built = {}
    for cell, changes in CELLS.items():
        new.clear()
        make_steps(mixer, json.loads(options), **changes)
        built[cell] = sorted(new)
    print(json.dumps(built))


if __name__ == "__main__":
    main(*sys.argv[1:])
