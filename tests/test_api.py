"""What `import mixerlab` offers a notebook."""

import inspect
from collections import defaultdict

import pytest
import torch
from command_line import TINY
from every_mixer import MIXERS, config_of
from omegaconf import OmegaConf

import mixerlab
from mixerlab.config.arguments import class_of
from mixerlab.mixers.attn import Attention
from mixerlab.records.files import run_folder


def test_completion_offers_the_api_and_nothing_else():
    assert dir(mixerlab) == sorted(mixerlab.__all__)
    assert all(getattr(mixerlab, name).__doc__ for name in dir(mixerlab))


def test_a_class_has_the_defaults_of_its_yaml():
    """Of several yamls of one class, the defaults are those of one of them."""
    yamls = defaultdict(list)
    for name in MIXERS:
        keys = OmegaConf.to_container(config_of(name))
        yamls[keys.pop("_target_")].append({key: value for key, value in keys.items() if key != "name"})
    assert len(yamls) > 4
    for target, options in yamls.items():
        parameters = inspect.signature(class_of(target)).parameters
        defaults = [{key: parameters[key].default for key in keys} for keys in options]
        assert any(keys == own for keys, own in zip(options, defaults, strict=True)), target


class Future(Attention):
    def forward(self, x):
        return super().forward(x.flip(1))


class Unpacks(Attention):
    def forward(self, x):
        _, _ = x.shape


def test_a_class_is_checked_without_a_yaml():
    before = torch.get_rng_state()
    assert "vmap" in mixerlab.check(Attention, num_heads=4)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ValueError, match="sees the future"):
        mixerlab.check(Future)
    with pytest.raises(ValueError, match=r"too many values to unpack \(expected 2\), in Unpacks.forward \(.*:\d+\) \("):
        mixerlab.check(Unpacks)
    with pytest.raises(ValueError, match=r"^mixer.num_heads=3 does not divide d_model=32: choose a divisor of 32 \("):
        mixerlab.check(Attention, num_heads=3)


def test_the_config_beside_a_record_is_that_of_the_run(tmp_path):
    given = ("mixer=attn", "task=icr", *TINY, "trainer.epochs=1", f"results_dir={tmp_path}")
    record = mixerlab.run(*given)
    assert record.rows[0]["setting"].startswith("vocab_size=8,seq_len=16")
    config = OmegaConf.load(run_folder(tmp_path, record.run_id) / "config.yaml")
    assert mixerlab.run(config=config).run_id == record.run_id
    with pytest.raises(ValueError, match="icr has no such setting"):
        mixerlab.run(*given, "task.setting=nope")


def test_a_model_is_built_around_a_mixer():
    mixer = Attention(16, num_heads=1)
    torch.nn.init.constant_(mixer.q_norm.weight, 3.0)
    model = mixerlab.build_model("task=icr", "model.d_model=16", mixer=mixer)
    one, other = (block.mixer for block in model.blocks)
    assert one is not other and one is not mixer and not torch.equal(one.q_proj.weight, other.q_proj.weight)
    assert (one.q_norm.weight == 3).all() and model(torch.zeros(1, 5, dtype=torch.int64)).shape == (1, 5, 16)
