"""`model.match_params=attn`: a model with as many parameters as that of another mixer."""

import functools
import json
import logging
from typing import Any, cast

from hydra.conf import HydraConf
from omegaconf import DictConfig, OmegaConf

from mixerlab.config.arguments import check_arguments
from mixerlab.config.building import Parts, TaskShape
from mixerlab.config.hybrid import composed_mixer, is_hybrid, mixers_of
from mixerlab.config.values import ModelConfig, check_component, mixer_version
from mixerlab.models.block import GRANULE, inner_width
from mixerlab.training.population import seeded

log = logging.getLogger(__name__)


def match_params(cfg: DictConfig, hydra_config: HydraConf) -> None:
    """Sets `model.d_ff` of a composed config."""
    model, own = (cast(dict[str, Any], OmegaConf.to_container(cfg[key], resolve=True)) for key in ("model", "mixer"))
    check_arguments("model", ModelConfig, model)
    name = model["match_params"]
    if model.get("d_ff") is not None:
        raise ValueError(f"model.match_params={name} sets model.d_ff, and model.d_ff={model['d_ff']} is set as well")
    other = composed_mixer(name, hydra_config)
    if is_hybrid(other):
        raise ValueError(f"model.match_params={name}: name a mixer, not a hybrid")
    for mixer in (own, other):
        for prefix, layer in mixers_of(mixer).items():
            check_component(prefix, layer)
    code = mixer_version({"mixer": own}), mixer_version({"mixer": other})
    cfg.model.d_ff = _matched(json.dumps(own), json.dumps(other), json.dumps(model), code)


@functools.lru_cache  # the cells of a sweep share mixers
def _matched(own: str, other: str, model: str, code: tuple[str, str]) -> int | None:
    """The inner width with which a model of the mixer `own` has as many parameters as one of `other`; None: the usual.

    `code` tells apart what classes of the same names were before and after a module was reloaded.
    """
    keys, name = json.loads(model), json.loads(other)["name"]
    usual, per_unit = inner_width(keys["d_model"]), 3 * keys["d_model"] * keys["n_layers"]
    # With a vocabulary of 1: what the task adds is the same for all mixers.
    with seeded(0):
        parts = [Parts.of({"mixer": json.loads(mixer), "model": keys}) for mixer in (own, other)]
        models = [each.build_model(TaskShape(1, 1)) for each in parts]
    ours, theirs = (sum(each.numel() for each in one.parameters()) - per_unit * usual for one in models)
    d_ff = GRANULE * round((usual + (theirs - ours) / per_unit) / GRANULE)
    if d_ff < GRANULE:
        raise ValueError(
            f"model.match_params={name}: without MLPs the model has {ours:,} parameters, with those of {name} and its"
            f" MLPs {theirs + per_unit * usual:,}"
        )
    log.info(
        "model.match_params=%s: model.d_ff=%d; with a vocabulary of 1 the model has %s parameters, that of %s %s",
        *(name, d_ff, f"{ours + per_unit * d_ff:,}", name, f"{theirs + per_unit * usual:,}"),
    )
    return None if d_ff == usual else d_ff
