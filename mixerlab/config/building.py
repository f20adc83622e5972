"""What a config describes, built: a model, its mixers, an optimizer, loggers."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from mixerlab.config.hybrid import mixers_of
from mixerlab.config.values import ModelConfig, asked_for
from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.auto_encoder import LINEAR_STD, AutoEncoder
from mixerlab.models.initial_values import overwritten
from mixerlab.models.language_model import LanguageModel
from mixerlab.records.errors import Exited, users_code, with_place
from mixerlab.tasks.base import Task
from mixerlab.training.layout import Grouping
from mixerlab.training.torch_optimizer import PARTS


class TaskShape(NamedTuple):
    """What a model takes of a task, in place of one."""

    vocab_size: int
    input_length: int
    autoencode: bool = False


def maker(cfg: Mapping[str, Any], group: str) -> Callable[..., Any]:
    """Instantiates the `_target_` of a config; its `name` is a label, which messages give behind `group`.

    It raises ValueError for what the constructor refuses, and for any other error of it, with its place in the user's
    code.
    """
    arguments = {key: value for key, value in cfg.items() if key != "name"}
    return _maker(arguments, f"{group}={cfg.get('name', cfg.get('_target_'))}")


def optimizer_maker(optimizer: Mapping[str, Any], schedule: Mapping[str, Any]) -> Callable[..., Any]:
    """Makes the optimizer of a population from the configs of both: of `population`, `lr` and `total_steps`.

    It gets optimizers inside it as partial functions, as each replica has its own of them.
    """
    inner = {part: dict(optimizer[part]) | {"_partial_": True} for part in PARTS if optimizer.get(part) is not None}
    return partial(maker(dict(optimizer) | inner, "optimizer"), schedule=maker(schedule, "schedule")())


def _maker(config: Mapping[str, Any], label: str) -> Callable[..., Any]:
    # Lists and dicts of Python: PyTorch refuses a ListConfig as a shape.
    config = {"_convert_": "object"} | dict(config)

    def make(**arguments: Any) -> Any:
        try:
            with users_code():
                return instantiate(config, **arguments)
        except (InstantiationException, Exited) as error:
            cause = error if isinstance(error, Exited) else error.__cause__ or error
            said = with_place(cause)
            is_named = said.startswith(f"{label.partition('=')[0]}.")  # as ours names its key, which may be any layer's
            raise ValueError(said if is_named else f"{label}: {said}") from error

    return make


@dataclass(frozen=True, eq=False)
class Parts:
    """What models are made of, as often as one is needed: the keys, and the mixers of the first layers.

    Of each mixer there is the name and a maker, which takes `d_model` and `layer_idx`.
    """

    mixers: Sequence[tuple[str, Callable[..., SequenceMixer]]]
    model: ModelConfig

    @classmethod
    def of(cls, cfg: Mapping[str, Any]) -> Self:
        """Those that a config's `mixer` and `model` describe."""
        model = ModelConfig(**cfg["model"])

        def made(make: Callable, asked: list[str], d_model: int, layer_idx: int = 0) -> SequenceMixer:
            place = {"layer_idx": layer_idx, "num_layers": model.n_layers}
            return make(d_model=d_model, **{key: place[key] for key in asked})

        mixers = [
            (mixer["name"], partial(made, maker(mixer, prefix), asked_for(mixer["_target_"], list(mixer.keys()))))
            for prefix, mixer in mixers_of(cfg["mixer"]).items()
        ]
        return cls(mixers, model)

    def build_model(self, task: Task | TaskShape, n_layers: int | None = None) -> LanguageModel | AutoEncoder:
        """A language model, or the auto-encoder if the task asks so, with `n_layers` in place of its key."""
        keys = self.model
        layers = enumerate(itertools.cycle(make for _, make in self.mixers))
        # Each is made when its block is.
        made: Iterator[SequenceMixer] = (make(d_model=keys.d_model, layer_idx=number) for number, make in layers)
        if keys.shared_mixer:
            made = itertools.cycle(list(itertools.islice(made, len(self.mixers))))
        common: dict[str, Any] = {"d_model": keys.d_model, "n_layers": n_layers or keys.n_layers, "d_ff": keys.d_ff}
        common["make_mixer"] = partial(next, made)
        if task.autoencode:
            return AutoEncoder(task.vocab_size, task.input_length, **common, redraw_all=keys.autoencoder_redraw_all)
        own = {key: getattr(keys, key) for key in ("linear_std", "tie_embeddings", "logit_softcap")}
        return LanguageModel(task.vocab_size, **common, **own)

    def mixers_in(self, model: LanguageModel | AutoEncoder) -> list[tuple[str, SequenceMixer]]:
        """The mixers of the first layers of such a model, each with its name."""
        mixers: list[Any] = [block.mixer for block in list(model.blocks)[: len(self.mixers)]]
        return [(name, mixer) for (name, _), mixer in zip(self.mixers, mixers, strict=True)]

    def initial_value_warnings(self, autoencode: bool) -> list[str]:
        """A sentence for each mixer whose initial values the model overwrites although they look chosen."""
        if autoencode and self.model.autoencoder_redraw_all:
            return []  # as asked for
        linear_std = LINEAR_STD if autoencode else self.model.linear_std
        warnings = [
            f"mixer={name} sets initial values of {', '.join(names)}, and the model overwrites them:"
            " mixerlab.mixers.base.keep_initial_values(parameter) keeps them"
            for name, make in self.mixers
            if (names := list(overwritten(make(d_model=self.model.d_model), linear_std)))
        ]
        return list(dict.fromkeys(warnings))


def grouping_of(optimizer: Mapping[str, Any]) -> Grouping:
    """Which parameters an optimizer takes together, by the keys of its config that say so."""
    return Grouping(**{key: optimizer[key] for key in ("filters", "decoder", "head") if key in optimizer})


def loggers_of(cfg: DictConfig, folder: Path) -> dict[str, Any]:
    """The run's loggers by their keys in the config; ValueError for one that cannot be made."""
    loggers = {}
    for name, logger in cfg.logger.items():
        if not isinstance(logger, DictConfig) or "_target_" not in logger:
            raise ValueError(f"logger.{name}={logger!r} must be a group of keys with a _target_")
        loggers[name] = _maker(logger, f"logger.{name}")(save_dir=folder)
    return loggers
