"""Checks that a mixer keeps the contract of `mixerlab.SequenceMixer`: `mixerlab check NAME`."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from mixerlab.checks.contract import WIDTH, ContractBroken, check_everything
from mixerlab.config.building import component, initial_value_warnings
from mixerlab.config.compose import compose
from mixerlab.config.hints import refusal, unresolved
from mixerlab.config.hybrid import is_hybrid, mixers_of


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if the mixer keeps the contract, 1 with one line on stderr if not."""
    parser = argparse.ArgumentParser(prog="mixerlab check", description=__doc__)
    parser.add_argument("name", help="a yaml in conf/mixer/, yours or ours; of a hybrid each layer is checked")
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help=f"settings of the mixer or model, such as mixer.num_heads=4 or model.d_model=128 (default width: {WIDTH})",
    )
    parser.add_argument("--config-dir", type=Path, help="your own folder of yamls; classes are found beside it")
    given = parser.parse_intermixed_args(arguments)
    checked = given.name = given.name.removeprefix("mixer=")
    width = WIDTH
    try:
        for text in given.overrides:
            if "=" not in text:
                raise ValueError(f"{text} is no KEY=VALUE: check one mixer at a time, and give its settings behind it")
            if not text.startswith(("mixer.", "model.")):
                raise ValueError(f"{text} changes nothing here: give mixer.KEY=VALUE or model.KEY=VALUE")
        if "=" in given.name:
            raise ValueError("give the name of a mixer, and then mixer.KEY=VALUE")
        if "," in given.name:
            commands = (f"mixerlab check {name.strip()}" for name in given.name.strip("[]").split(",") if name.strip())
            raise ValueError(f"check one mixer at a time: {'; '.join(commands)}")
        cfg = compose(f"mixer={given.name}", *given.overrides, config_dir=given.config_dir)
        if any(text.startswith("model.d_model=") for text in given.overrides):
            width = cfg.model.d_model
        for name, config in _distinct(cfg.mixer, given.name):
            checked = name
            values = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
            decision = check_everything(values, name, partial(component, values, d_model=width), width)
            print(
                f"{name} keeps the contract: shapes, causality, gradients, any length, replicas, bfloat16, declarations"
            )
            print(decision.why or "replicas compute side by side, under vmap")
        for warning in initial_value_warnings(cfg, autoencode=False):
            print(f"note: {warning}")
    except (HydraException, MarkedYAMLError) as error:
        return _say(checked, refusal(error))
    except OmegaConfBaseException as error:
        return _say(checked, unresolved(error))
    except (ContractBroken, ValueError) as error:
        return _say(checked, str(error))
    return 0


def _say(checked: str, message: str) -> int:
    """Says what is wrong with the mixer `checked`, which the message may begin with; gives the exit status."""
    print(f"error: {checked}: {message.removeprefix(f'{checked}: ')}", file=sys.stderr)
    return 1


def _distinct(mixer: DictConfig, name: str) -> list[tuple[str, Any]]:
    """The mixers to check, by the name of their yaml: one, or the layers of a hybrid without repeats."""
    if not is_hybrid(mixer):
        return [(name, mixer)]
    found: list[tuple[str, Any]] = []
    for layer in zip(mixer.layers, mixers_of(mixer).values(), strict=True):
        if layer not in found:
            found.append(layer)
    return found
