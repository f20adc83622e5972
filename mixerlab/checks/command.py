"""Checks that a mixer keeps the contract of `mixerlab.SequenceMixer`: `mixerlab check NAME`."""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from omegaconf import OmegaConf

from mixerlab.checks.contract import WIDTH, check_everything
from mixerlab.config.arguments import check_arguments
from mixerlab.config.building import Parts
from mixerlab.config.compose import compose
from mixerlab.config.hints import one_line_refusals
from mixerlab.config.hybrid import mixers_of
from mixerlab.config.values import ModelConfig, check_component

MODEL_KEYS = ("model.d_model", "model.n_layers", "model.linear_std")


def main(arguments: Sequence[str] | None = None) -> None:
    """Raises ValueError, which names the mixer, unless it keeps the contract."""
    parser = argparse.ArgumentParser(prog="mixerlab check", description=__doc__)
    parser.add_argument("name", metavar="NAME", help="a yaml in conf/mixer/, yours or ours; of a hybrid each layer")
    settings = f"of the mixer, such as mixer.num_heads=4; model.d_model=128 (default: {WIDTH}), n_layers or linear_std"
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help=settings)
    parser.add_argument("--config-dir", action="append", help="your own folder of yamls; classes are found beside it")
    args = parser.parse_intermixed_args(arguments)
    name = args.name.removeprefix("mixer=")
    label = f"mixer={name}"
    try:
        if unused := [text for text in args.overrides if not text.lstrip("+~").startswith(("mixer.", *MODEL_KEYS))]:
            raise ValueError(f"a check uses keys of the mixer, {', '.join(MODEL_KEYS)}, not {unused[0]}")
        composed = compose(f"mixer={name}", f"model.d_model={WIDTH}", *args.overrides, config_dir=args.config_dir)
        with one_line_refusals():
            config = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True))
        check_arguments("model", ModelConfig, config["model"])
        mixers = mixers_of(config["mixer"])
        for prefix, mixer in mixers.items():
            label = f"{prefix}={mixer['name']}"
            check_component(prefix, mixer)
        parts = Parts.of(config)
        for prefix, (name, make) in zip(mixers, parts.mixers, strict=True):
            label = f"{prefix}={name}"
            decision = check_everything(partial(make, d_model=parts.model.d_model), parts.model.d_model)
            print(f"{name} keeps the contract: shapes, causality, gradients, any length, replicas, states")
            print(decision.why or "replicas compute side by side, under vmap")
            if note := decision.unused:
                print(f"note: {note}")
        for warning in parts.initial_value_warnings(autoencode=False):
            print(f"note: {warning}")
    except ValueError as error:
        raise ValueError(f"{label}: {str(error).removeprefix(f'{label}: ')}") from error
