"""What `import mixerlab` offers a notebook."""

import inspect
from collections import defaultdict

import pytest
import torch
from every_mixer import CONF
from omegaconf import OmegaConf

import mixerlab
from mixerlab.config.arguments import class_of
from mixerlab.mixers.attn import Attention


def test_completion_offers_the_api_and_nothing_else():
    assert dir(mixerlab) == sorted(mixerlab.__all__)
    assert all(getattr(mixerlab, name).__doc__ for name in dir(mixerlab))


def test_a_class_has_the_defaults_of_its_yaml():
    """Of several yamls of one class, the defaults are those of one of them."""
    yamls = defaultdict(list)
    for path in (CONF / "mixer").glob("*.yaml"):
        keys = OmegaConf.to_container(OmegaConf.load(path))
        if "_target_" in keys:  # a hybrid has no class
            yamls[keys.pop("_target_")].append({key: value for key, value in keys.items() if key != "name"})
    assert len(yamls) > 4
    for target, options in yamls.items():
        parameters = inspect.signature(class_of(target)).parameters
        defaults = [{key: parameters[key].default for key in keys} for keys in options]
        assert any(keys == own for keys, own in zip(options, defaults, strict=True)), target


class Future(Attention):
    """Reads the sequence from its end."""

    def forward(self, x):
        return super().forward(x.flip(1))


def test_a_class_is_checked_without_a_yaml():
    assert "vmap" in mixerlab.check(Attention, num_heads=4)
    with pytest.raises(ValueError, match="sees the future"):
        mixerlab.check(Future)


def test_a_model_is_built_around_a_mixer():
    mixer = Attention(16, num_heads=1)
    torch.nn.init.constant_(mixer.q_norm.weight, 3.0)
    model = mixerlab.build_model("task=icr", "model.d_model=16", mixer=mixer)
    one, other = (block.mixer for block in model.blocks)
    assert one is not other and one is not mixer and not torch.equal(one.q_proj.weight, other.q_proj.weight)
    assert (one.q_norm.weight == 3).all() and model(torch.zeros(1, 5, dtype=torch.int64)).shape == (1, 5, 16)
