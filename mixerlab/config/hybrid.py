"""`mixer=hybrid 'mixer.layers=[attn,gdn]'`: a model whose layers have different mixers.

`expand` gives `mixer.options` an entry for each layer: the config that this mixer has as `mixer=<name>`, with the keys
that were set for the layer. From then on a hybrid is like any other config; `mixers_of` lists the mixers in it.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

from hydra.conf import HydraConf
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from mixerlab.config.yamls import check_yaml

NAME = "hybrid"
_KEYS = ("name", "layers", "options")
_LAYER = "hybrid_layer"  # the yaml from which a layer is composed

# A mapping that takes new keys without a `+`: Hydra closes all others. A yaml cannot say so, hence this config in code.
_open = OmegaConf.create({})
OmegaConf.set_struct(_open, False)
ConfigStore.instance().store("open_mapping", _open, provider="mixerlab")


def is_hybrid(mixer: Mapping[str, Any] | DictConfig) -> bool:
    """Whether the config `mixer` has layers of its own and no class."""
    return "layers" in mixer.keys() and "_target_" not in mixer  # noqa: SIM118  # `in` says False of a value `???`


def mixers_of(mixer: Mapping[str, Any] | DictConfig) -> dict[str, Any]:
    """The config of each mixer in `mixer`, from the first layer on, by the prefix of its keys.

    Raises:
        ValueError: a hybrid that `expand` has not seen.
    """
    if not is_hybrid(mixer):
        return {"mixer": mixer}
    names, options = mixer["layers"], mixer.get("options")
    numbers = [str(number) for number in range(len(names))] if isinstance(names, list | ListConfig) else []
    if not numbers or not isinstance(options, Mapping | DictConfig) or set(options) != set(numbers):
        raise ValueError("mixer.options must have the config of every layer: compose a hybrid with mixerlab.compose")
    return {f"mixer.options.{number}": options[number] for number in numbers}


def key_of_layer(key: object) -> str:
    """How to set a key of one layer of a hybrid."""
    return f"a key of a layer is mixer.options.<layer>.{key}, with layers counted from 0"


def check_keys(mixer: Mapping[str, Any], n_layers: int) -> None:
    """Raises ValueError if an expanded hybrid has unknown keys, or cannot fill `n_layers` layers."""
    for key in mixer:
        if key not in _KEYS:
            raise ValueError(f"unknown key mixer.{key}; a hybrid has: {', '.join(_KEYS)}; {key_of_layer(key)}")
    pattern = len(mixer["layers"])
    if n_layers % pattern:
        raise ValueError(
            f"model.n_layers={n_layers} is not a multiple of the {pattern} layers of"
            f" mixer.layers=[{','.join(mixer['layers'])}]: set model.n_layers={pattern * (n_layers // pattern + 1)}"
        )


def expand(cfg: DictConfig, hydra_config: DictConfig | HydraConf, loader: ConfigLoader) -> None:
    """Gives a hybrid in `cfg.mixer` the config of every layer, and a name; all else stays, if its yaml may.

    Args:
        cfg: a composed config.
        hydra_config: its `hydra` group: where Hydra looks for yamls, and which experiment was chosen.
        loader: what composed it.

    Raises:
        ValueError: a mixer that does not exist, a key that it does not have, or a yaml that `check_yaml` refuses.
    """
    mixer = cfg.mixer
    if not isinstance(mixer, DictConfig):
        return
    if not is_hybrid(mixer):
        file = hydra_config.runtime.choices.get("mixer")
        # Overrides may have changed both on purpose: then it is the yaml alone that counts.
        if file and not (mixer.get("_target_") and mixer.get("name") == file):
            check_yaml(_composed(file, hydra_config, loader), file)
        return
    names, given = _layers(mixer), _options(mixer)
    for key in given:
        if key not in {str(number) for number in range(len(names))}:
            raise ValueError(
                f"mixer.options.{key}: mixer.layers=[{','.join(names)}] has layers 0 to {len(names) - 1}, no {key}"
            )
    composed = {name: _composed(name, hydra_config, loader) for name in dict.fromkeys(names)}
    for name, layer in composed.items():
        check_yaml(layer, name)
    options: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(names):
        own = given.get(str(number), {})
        for key in own:
            if key not in composed[name]:
                valid = ", ".join(key for key in composed[name] if key not in ("name", "_target_")) or "no keys"
                raise ValueError(f"unknown key mixer.options.{number}.{key}; {name} has: {valid}")
        options[str(number)] = _merged(composed[name], own)
    with open_dict(cfg):
        mixer.options = options
        if mixer.get("name") == NAME:
            mixer.name = "+".join(str(layer["name"]) for layer in options.values())


def _layers(mixer: DictConfig) -> list[str]:
    if OmegaConf.is_missing(mixer, "layers"):
        raise ValueError("mixer.layers is missing: name the mixers of the layers, such as 'mixer.layers=[attn,gdn]'")
    names = mixer.layers
    if not isinstance(names, ListConfig) or not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"mixer.layers={names!r} must be a list of mixers, such as [attn,gdn]")
    return [str(name) for name in names]


def _options(mixer: DictConfig) -> dict[str, dict[str, Any]]:
    """What was set for each layer, by its number as a string; a yaml and the command line may each give a part."""
    given = OmegaConf.to_container(mixer.options) if isinstance(mixer.get("options"), DictConfig) else None
    if not isinstance(given, dict):
        raise ValueError(f"mixer.options={mixer.get('options')!r} must be keys by layer: mixer.options.1.num_heads=4")
    by_layer: dict[str, dict[str, Any]] = {}
    for key, keys in given.items():
        number = str(key)
        if not isinstance(keys, dict):
            if not number.isdecimal():
                raise ValueError(f"mixer.options.{number}={keys!r} names no layer: {key_of_layer(number)}")
            raise ValueError(f"mixer.options.{number}={keys!r} must be a group: mixer.options.{number}.num_heads=4")
        by_layer[number] = _merged(by_layer.get(number, {}), keys)
    return by_layer


def _merged(config: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.merge(config, own)))


def _composed(name: str, hydra_config: DictConfig | HydraConf, loader: ConfigLoader) -> dict[str, Any]:
    """`cfg.mixer` of `mixer=<name>` under the same experiment, its interpolations unresolved."""
    overrides = [f"mixer={name}"]
    if searched := list(hydra_config.searchpath):
        overrides.append(f"hydra.searchpath={json.dumps(searched, ensure_ascii=False)}")
    if experiment := hydra_config.runtime.choices.get("experiment"):
        overrides.append(f"layers@mixer={experiment}_{name}")
    try:
        mixer = loader.load_configuration(_LAYER, overrides, RunMode.RUN).mixer
    except MissingConfigException as error:
        known = sorted(set(error.options or ()) - {NAME})
        raise ValueError(f"mixer.layers: there is no mixer {name!r}; there are: {', '.join(known)}") from error
    except HydraException as error:
        raise ValueError(f"mixer.layers: {name!r}: {str(error).splitlines()[0]}") from error
    if not isinstance(mixer, DictConfig) or is_hybrid(mixer):
        raise ValueError(f"mixer.layers: {name} is a hybrid: name the mixers of its layers instead")
    return cast(dict[str, Any], OmegaConf.to_container(mixer))
