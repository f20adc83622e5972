"""A run's config: composed by Hydra, and completed by what its yamls cannot say."""

from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.conf import HydraConf
from omegaconf import DictConfig, OmegaConf

from mixerlab.config.hints import one_line_refusals
from mixerlab.config.hybrid import expand, is_hybrid
from mixerlab.config.project import ConfigDir, check_yaml, check_yamls, given, note_folders, search_path, use_folders
from mixerlab.config.settings import build_task, follow_setting
from mixerlab.config.sizes import match_params
from mixerlab.records.schema import CHOICES


def compose(*overrides: str, config_dir: ConfigDir = None) -> DictConfig:
    """The config of the command `mixerlab *overrides`.

    Args:
        overrides: as on the command line, such as `"mixer=gdn"` or `"task.seq_len=64"`.
        config_dir: a folder of your own yamls, as with `--config-dir`, or several; classes are found in the folder that
            holds it.

    Returns:
        The composed config, with interpolations, as `mixerlab.run(config=...)` takes it. It, its copies, and
        merges of which it is the first config, remember `config_dir`.

    Raises:
        ValueError: an override that is no string, or that Hydra refuses; a yaml that cannot be read; a hybrid's layer
            that does not exist, or a key that it does not have.
    """
    for override in overrides:
        if not isinstance(override, str):
            raise ValueError(f"override {override!r} is no string: write 'mixer=attn', 'task=icr'")
    with initialize_config_module("mixerlab.conf", version_base="1.3"):
        with one_line_refusals():
            folders = use_folders(config_dir)
            check_yamls(folders)
            places = search_path([f"file://{folder}" for folder in folders])
            composed = hydra_compose("config", [*places, *overrides], return_hydra_config=True)
        cfg = completed(composed)
    note_folders(cfg, folders)
    return cfg


def completed(composed: DictConfig) -> DictConfig:
    """The config without Hydra's own group, which `complete` has changed."""
    cfg = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    complete(cfg, composed.hydra)
    return cfg


@one_line_refusals()
def complete(cfg: DictConfig, hydra_config: HydraConf) -> None:
    """Gives a hybrid its layers' configs, a task its baseline and a model its `d_ff`."""
    for group in CHOICES:
        if isinstance(file := hydra_config.runtime.choices.get(group), str):
            check_yaml(cfg.get(group), file, group, given(hydra_config))
    follow_setting(cfg, hydra_config)
    if is_hybrid(cfg.mixer):
        expand(cfg, hydra_config)
    if isinstance(model := cfg.get("model"), DictConfig) and model.get("match_params") is not None:
        match_params(cfg, hydra_config)
    epochs = [text for text in given(hydra_config) if text.startswith("trainer.epochs=")]
    if epochs and "tokens" in cfg.task and build_task(cfg.task).trained_rows is not None:
        told = f"because task.tokens={cfg.task.tokens} is set: add task.tokens=null"
        raise ValueError(f"{epochs[0]} has no effect, {told}")
