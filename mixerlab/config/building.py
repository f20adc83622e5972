"""What a config describes, built: a model, its mixers, an optimizer, loggers."""

import itertools
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from mixerlab.config.hybrid import is_hybrid, mixers_of
from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.auto_encoder import LINEAR_STD, AutoEncoder
from mixerlab.models.initial_values import overwritten
from mixerlab.models.language_model import LanguageModel
from mixerlab.records.errors import with_place
from mixerlab.training.population import Grouping

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


class Sizes(Protocol):
    """What a model takes from its task."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def input_length(self) -> int: ...
    @property
    def autoencode(self) -> bool: ...


def component(cfg: Mapping[str, Any] | DictConfig, group: str = "", **arguments: Any) -> Any:
    """Instantiates the `_target_` of a config; its `name` is a label, which messages give behind `group`.

    Raises:
        ValueError: what the constructor refuses; any other error of it too, with its place in the user's code.
    """
    name = f"{group}={cfg['name']}" if group else cfg.get("name", cfg.get("_target_"))
    return _instantiated({str(key): value for key, value in cfg.items() if key != "name"}, name, **arguments)


def _instantiated(cfg: Mapping[str, Any], name: str, **arguments: Any) -> Any:
    try:
        # Lists and dicts of Python: PyTorch refuses a ListConfig as a shape.
        return instantiate({"_convert_": "object"} | dict(cfg), **arguments)
    except InstantiationException as error:
        cause = error.__cause__ or error
        if type(cause) is ValueError and str(cfg["_target_"]).startswith("mixerlab."):  # its messages need no place
            raise cause from None
        raise ValueError(f"{name}: {with_place(cause)}") from error


def build_model(cfg: DictConfig, sizes: Sizes) -> LanguageModel | AutoEncoder:
    """One replica's model for a task of these sizes: a language model, or the auto-encoder if the task asks for it."""
    common = {"d_model": cfg.model.d_model, "n_layers": cfg.model.n_layers}
    common["make_mixer"] = partial(next, _layer_mixers(cfg))
    if sizes.autoencode:
        redraw_all = cfg.model.autoencoder_redraw_all
        return AutoEncoder(sizes.vocab_size, sizes.input_length, **common, redraw_all=redraw_all)
    return LanguageModel(sizes.vocab_size, **common, linear_std=cfg.model.linear_std)


def _layer_mixers(cfg: DictConfig) -> Iterator[SequenceMixer]:
    """The mixers of the layers, from the first on, without end: those of a hybrid in turn."""
    for prefix, mixer in itertools.cycle(mixers_of(cfg.mixer).items()):
        try:
            yield component(mixer, d_model=cfg.model.d_model)
        except ValueError as error:
            if is_hybrid(cfg.mixer):  # the message does not say in which layer
                raise ValueError(f"{prefix} ({mixer['name']}): {error}") from error
            raise


def mixers_in(cfg: DictConfig, model: LanguageModel | AutoEncoder) -> list[tuple[str, SequenceMixer]]:
    """The mixers of the first layers, each with its name: one, or those of a hybrid's pattern."""
    names = [mixer["name"] for mixer in mixers_of(cfg.mixer).values()]
    mixers: list[Any] = [block.mixer for block in list(model.blocks)[: len(names)]]
    for name, mixer in zip(names, mixers, strict=True):
        if not isinstance(mixer, SequenceMixer):
            raise ValueError(f"mixer={name}: {type(mixer).__name__} must be a subclass of mixerlab.SequenceMixer")
    return list(zip(names, mixers, strict=True))


def grouping_of(optimizer: Mapping[str, Any] | DictConfig) -> Grouping:
    """Which parameters an optimizer takes together, by the keys of its config that say so."""
    return Grouping(**{key: optimizer[key] for key in ("filters", "decoder", "head") if key in optimizer})


def initial_value_warnings(cfg: DictConfig, autoencode: bool) -> list[str]:
    """A sentence for each mixer whose initial values the model overwrites although they look chosen."""
    if autoencode and cfg.model.autoencoder_redraw_all:
        return []  # as asked for
    linear_std = LINEAR_STD if autoencode else cfg.model.linear_std
    warnings: dict[str, None] = {}
    for mixer in mixers_of(cfg.mixer).values():
        if names := list(overwritten(component(mixer, d_model=cfg.model.d_model), linear_std)):
            sentence = (
                f"mixer={mixer.name} sets initial values of {', '.join(names)}, and the model overwrites them:"
                " mixerlab.mixers.base.keep_initial_values(parameter) keeps them"
            )
            warnings[sentence] = None
    return list(warnings)


def loggers_of(cfg: DictConfig, folder: Path) -> dict[str, "Logger"]:
    """The run's loggers by their keys in the config; ValueError for one that cannot be made."""
    loggers = {}
    for name, logger in cfg.logger.items():
        if not isinstance(logger, DictConfig) or "_target_" not in logger:
            raise ValueError(f"logger.{name}={logger!r} must be a group of keys with a _target_")
        loggers[name] = _instantiated(logger, f"logger.{name}", save_dir=folder)
    return loggers
