"""The recipes of others: `experiment=madlab` and `experiment=mesanet`, with the layers that they give to a mixer."""

import pytest

from mixerlab.config.compose import compose
from mixerlab.config.values import checked


def test_mad_labs_epochs_and_rates():
    """Its other keys are those of the steps that `test_madlab_steps` compares."""
    cfg = compose("experiment=madlab", "mixer=attn", "task=cmp")
    assert (cfg.trainer.epochs, cfg.trainer.stop_above, cfg.trainer.stop_when_perfect) == (200, 0.999, False)
    optimizer = cfg.optimizer.lr, cfg.optimizer.weight_decay, cfg.optimizer.max_grad_norm
    assert optimizer == ([1e-4, 5e-4, 1e-3], 0.0, None)


def test_its_layers_are_for_their_mixer_and_give_way_to_the_command_line():
    assert compose("experiment=madlab", "mixer=mamba").mixer.d_state == 4
    assert compose("experiment=madlab", "mixer=mamba", "mixer.d_state=8").mixer.d_state == 8
    assert compose("experiment=madlab", "mixer=gdn").mixer == compose("mixer=gdn").mixer
    assert compose("mixer=attn").mixer.num_heads == 2


def test_mesanet():
    """The paper's appendix F.1: 750 warm-up steps, whatever the setting makes of the epochs."""
    cfg = compose("experiment=mesanet", "mixer=mesa", "task=mem")
    assert (cfg.mixer.num_heads, cfg.trainer.batch_size, cfg.trainer.epochs) == (8, 32, 200)
    assert (cfg.optimizer.lr, cfg.optimizer.betas) == ([3e-3, 1e-3, 5e-4, 1e-4], [0.9, 0.98])
    assert (cfg.model.linear_std, cfg.model.tie_embeddings, cfg.model.logit_softcap) == ("fan_in", True, 30)
    assert checked(cfg)[1]["schedule"]["warmup"] == pytest.approx(750 / (200 * 256 / 32))
    harder = compose("experiment=mesanet", "mixer=attn", "task=icr", "task.setting=num_train_examples-800")
    assert checked(harder)[1]["schedule"]["warmup"] == pytest.approx(750 / (200 * 800 / 32))
