"""`experiment=madlab` is mad-lab's recipe, with the layers that it gives to a mixer."""

from every_mixer import CONF
from hydra import compose, initialize_config_dir

from mixerlab.config.values import checked


def composed(*overrides):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", list(overrides))


def test_the_recipe():
    cfg = composed("experiment=madlab", "mixer=attn", "task=cmp")
    assert (cfg.mixer.num_heads, cfg.mixer.bias, cfg.mixer.qk_norm) == (16, True, False)
    assert (cfg.optimizer.name, cfg.optimizer.lr, cfg.optimizer.betas) == ("adamw", [1e-4, 5e-4, 1e-3], [0.9, 0.999])
    assert (cfg.optimizer.weight_decay, cfg.optimizer.max_grad_norm) == (0.0, None)
    assert (cfg.trainer.epochs, cfg.trainer.stop_above, cfg.trainer.stop_when_perfect) == (200, 0.999, False)
    assert (cfg.schedule.name, cfg.model.linear_std, cfg.model.autoencoder_redraw_all) == ("constant", None, True)
    checked(cfg)


def test_its_layers_are_for_their_mixer_and_give_way_to_the_command_line():
    assert composed("experiment=madlab", "mixer=mamba").mixer.d_state == 4
    assert composed("experiment=madlab", "mixer=mamba", "mixer.d_state=8").mixer.d_state == 8
    assert composed("experiment=madlab", "mixer=gdn").mixer == composed("mixer=gdn").mixer
    assert composed("mixer=attn").mixer.num_heads == 2
