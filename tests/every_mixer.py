"""Every mixer of `conf/mixer/`, found by its file: a new one is tested without an edit."""

import sys
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import OmegaConf

from mixerlab.kernels.common import dispatch
from mixerlab.mixers.base import SequenceMixer

CONF = Path(__file__).parents[1] / "conf"
MIXERS = sorted(path.stem for path in (CONF / "mixer").glob("*.yaml") if path.stem != "hybrid")  # which has no class


def config_of(name, conf=CONF):
    """The yaml, over those that it begins with (`defaults: [gdn, _self_]`)."""
    own = OmegaConf.load(conf / "mixer" / f"{name}.yaml")
    *others, _ = own.pop("defaults", ["_self_"])
    return OmegaConf.merge(*(config_of(other, conf) for other in others), own)


def mixer_of(name, d_model, conf=CONF, **overrides):
    config = {key: value for key, value in config_of(name, conf).items() if key != "name"}
    return instantiate(config | overrides, d_model=d_model)


def prefer_kernels(monkeypatch):
    """On a CPU too, `auto` means kernels from here on, where they take the sizes; the modules that asked for one."""
    asked, here = set(), dispatch.resolve_backend

    def resolver(name):
        def resolve(backend, device, why=""):
            if backend != "auto" or why:
                return here(backend, device, why)
            asked.add(name)
            return "triton"

        return resolve

    for name, module in list(sys.modules.items()):
        if vars(module).get("resolve_backend") is here:
            monkeypatch.setattr(module, "resolve_backend", resolver(name))
    return asked


class Cumulated(SequenceMixer):
    """What a newcomer writes: no state of its own, so that its prefix grows, and nothing to measure."""

    def __init__(self, d_model=1):
        super().__init__()

    def forward(self, x):
        return x.cumsum(dim=1)

    def state_size(self, seq_len):
        return 1
