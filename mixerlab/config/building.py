"""What a config describes, built: a model, its mixers, an optimizer, loggers."""

import itertools
from collections.abc import Callable, Iterator, Mapping
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
from mixerlab.records.errors import Exited, with_place
from mixerlab.records.interruption import users_code
from mixerlab.tasks.base import Task
from mixerlab.training.layout import Grouping
from mixerlab.training.torch_optimizer import PARTS


class TaskShape(NamedTuple):
    """What a model takes of a task, in place of one."""

    vocab_size: int
    input_length: int
    autoencode: bool = False


NamedMakers = list[tuple[str, Callable[..., SequenceMixer]]]


def maker(cfg: Mapping[str, Any], group: str) -> Callable[..., Any]:
    """Instantiates the `_target_` of a config; its `name` is a label, which messages give behind `group`.

    It raises ValueError for what the constructor refuses, and for any other error of it, with its place in the user's
    code.
    """
    arguments = {key: value for key, value in cfg.items() if key != "name"}
    return _maker(arguments, f"{group}={cfg.get('name', cfg.get('_target_'))}")


def optimizer_maker(cfg: Mapping[str, Any]) -> Callable[..., Any]:
    """`maker` of an optimizer. It gets those inside it as partial functions, as each replica has its own of them."""
    inner = {part: dict(cfg[part]) | {"_partial_": True} for part in PARTS if cfg.get(part) is not None}
    return maker(dict(cfg) | inner, "optimizer")


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
    """What a run is made of, each to be built as often as it is needed.

    `mixers` are as `mixer_makers` gives them; `make_schedule` and `make_optimizer` take what a run supplies.
    """

    mixers: NamedMakers
    model: ModelConfig
    make_schedule: Callable[..., Any]
    make_optimizer: Callable[..., Any]
    grouping: Grouping

    @classmethod
    def of(cls, cfg: Mapping[str, Any]) -> Self:
        return cls(
            mixers=mixer_makers(cfg["mixer"], cfg["model"]["n_layers"]),
            model=ModelConfig(**cfg["model"]),
            make_schedule=maker(cfg["schedule"], "schedule"),
            make_optimizer=optimizer_maker(cfg["optimizer"]),
            grouping=grouping_of(cfg["optimizer"]),
        )

    def build_model(self, task: Task | TaskShape, n_layers: int | None = None) -> LanguageModel | AutoEncoder:
        """One replica's model: a language model, or the auto-encoder if the task asks so."""
        return model_of(self.mixers, self.model, task, n_layers)

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


def mixer_makers(cfg: Mapping[str, Any], n_layers: int) -> NamedMakers:
    """Name and maker of the mixers of the first layers: one, or those of a hybrid's pattern.

    A maker takes `d_model` and `layer_idx`, and gives a constructor its place if it asks for it.
    """

    def made(make: Callable, asked: list[str], d_model: int, layer_idx: int = 0) -> SequenceMixer:
        place = {"layer_idx": layer_idx, "num_layers": n_layers}
        return make(d_model=d_model, **{key: place[key] for key in asked})

    return [
        (mixer["name"], partial(made, maker(mixer, prefix), asked_for(mixer["_target_"], list(mixer.keys()))))
        for prefix, mixer in mixers_of(cfg).items()
    ]


def model_of(
    mixers: NamedMakers, keys: ModelConfig, task: Task | TaskShape, n_layers: int | None = None
) -> LanguageModel | AutoEncoder:
    """A model of these mixers (`mixer_makers`), with `n_layers` in place of those that the keys say."""
    layers = enumerate(itertools.cycle(make for _, make in mixers))
    # Each is made when its block is.
    made: Iterator[SequenceMixer] = (make(d_model=keys.d_model, layer_idx=number) for number, make in layers)
    if keys.shared_mixer:
        made = itertools.cycle(list(itertools.islice(made, len(mixers))))
    common: dict[str, Any] = {"d_model": keys.d_model, "n_layers": n_layers or keys.n_layers, "d_ff": keys.d_ff}
    common["make_mixer"] = partial(next, made)
    if task.autoencode:
        return AutoEncoder(task.vocab_size, task.input_length, **common, redraw_all=keys.autoencoder_redraw_all)
    own = {key: getattr(keys, key) for key in ("linear_std", "tie_embeddings", "logit_softcap")}
    return LanguageModel(task.vocab_size, **common, **own)


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
