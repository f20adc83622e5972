"""`mixer=hybrid 'mixer.layers=[attn,gdn]'`: a model whose layers have different mixers.

`expand` gives `mixer.options` an entry for each layer: the config that this mixer has as `mixer=<name>`, with the keys
that were set for the layer. From then on a hybrid is like any other config; `mixers_of` lists the mixers in it.
"""

from collections.abc import Mapping
from typing import Any, cast

from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from mixerlab.config.project import check_yaml, composed_anew

NAME = "hybrid"
_KEYS = ("name", "layers", "options")

# A mapping that takes new keys without a `+`: Hydra closes all others. A yaml cannot say so, hence this config in code.
_open = OmegaConf.create({})
OmegaConf.set_struct(_open, False)
ConfigStore.instance().store("open_mapping", _open, provider="mixerlab")


def is_hybrid(mixer: Mapping[str, Any]) -> bool:
    """Whether the config `mixer` has layers of its own and no class."""
    return "layers" in mixer.keys() and "_target_" not in mixer  # noqa: SIM118  # `in` says False of a value `???`


def mixers_of(mixer: Mapping[str, Any]) -> dict[str, Any]:
    """The config of each mixer in `mixer`, from the first layer on, by the prefix of its keys."""
    if not is_hybrid(mixer):
        return {"mixer": mixer}
    names, options = mixer.get("layers"), mixer.get("options")
    numbers = [str(number) for number in range(len(names))] if isinstance(names, list | ListConfig) else []
    if not numbers or not isinstance(options, Mapping) or set(options) != set(numbers):
        raise ValueError("mixer.options must have the config of every layer: compose a hybrid with mixerlab.compose")
    return {f"mixer.options.{number}": options[number] for number in numbers}


def check_keys(mixer: Mapping[str, Any], n_layers: int) -> None:
    """Raises ValueError if an expanded hybrid has unknown keys, or cannot fill `n_layers` layers."""
    if unknown := [key for key in mixer if key not in _KEYS]:
        raise ValueError(f"unknown key mixer.{unknown[0]}; a hybrid has: {', '.join(_KEYS)}")
    pattern = len(mixer["layers"])
    if n_layers % pattern:
        raise ValueError(
            f"model.n_layers={n_layers} is not a multiple of the {pattern} layers of"
            f" mixer.layers=[{','.join(mixer['layers'])}]: set model.n_layers={pattern * (n_layers // pattern + 1)}"
        )


def expand(cfg: DictConfig, hydra_config: HydraConf) -> None:
    """Gives a hybrid in `cfg.mixer` the config of every layer, and a name."""
    names = cfg.mixer.get("layers")
    if not isinstance(names, ListConfig) or not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"mixer.layers={names!r} must list mixers, such as 'mixer.layers=[attn,gdn]'")
    composed = {name: composed_mixer(name, hydra_config) for name in dict.fromkeys(names)}
    if hybrids := [name for name, mixer in composed.items() if is_hybrid(mixer)]:
        raise ValueError(f"mixer.layers: {hybrids[0]} is a hybrid: name the mixers of its layers instead")
    options = {str(number): composed[name] for number, name in enumerate(names)}
    example = "mixer.options.1.num_heads=4"
    if not isinstance(own := cfg.mixer.get("options"), DictConfig):
        raise ValueError(f"mixer.options={own!r} must be keys by layer, such as {example}")
    for number, keys in own.items():  # a number in a yaml, a string of the command line, or both
        layer = str(number)
        if layer not in options or not isinstance(keys, DictConfig):
            layers = f"layers are 0 to {len(names) - 1}, and each takes keys, such as {example}"
            raise ValueError(f"mixer.options.{layer}={keys!r}: {layers}")
        options[layer] = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.merge(options[layer], keys)))
    with open_dict(cfg):
        cfg.mixer.options = options
        if cfg.mixer.get("name") == NAME:
            cfg.mixer.name = "+".join(str(layer["name"]) for layer in options.values())


def composed_mixer(name: str, hydra_config: HydraConf) -> dict[str, Any]:
    """`cfg.mixer` of `mixer=<name>` under the same experiment, its interpolations unresolved."""
    overrides = [f"mixer={name}"]
    if experiment := hydra_config.runtime.choices.get("experiment"):
        overrides.append(f"layers@mixer={experiment}_{name}")
    mixer = composed_anew("hybrid_layer", overrides, hydra_config).get("mixer")
    check_yaml(mixer, name)
    return cast(dict[str, Any], OmegaConf.to_container(mixer))
