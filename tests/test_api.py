"""What `import mixerlab` offers a notebook."""

import inspect

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


@pytest.mark.parametrize("path", sorted((CONF / "mixer").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_class_has_the_defaults_of_its_yaml(path):
    keys = OmegaConf.to_container(OmegaConf.load(path))
    if "_target_" not in keys:  # a hybrid has no class
        return
    parameters = inspect.signature(class_of(keys["_target_"])).parameters
    expected = {key: value for key, value in keys.items() if key not in ("name", "_target_")}
    assert {key: parameters[key].default for key in expected} == expected


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
