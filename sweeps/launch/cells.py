"""The cells of a grid (mixer x task x setting x whatever else varies): each is composed, checked and built once.

Hydra's sweepers hand every combination of overrides to a launcher. Ours first composes each, so that a bad choice or
key is refused before anything trains, a setting `*` becomes all settings of its task, and a key that only some mixers
or tasks have is left out for the others.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.errors import ConfigCompositionException
from hydra.types import HydraContext
from omegaconf import DictConfig

from mixerlab.checks.buildable import check_buildable
from mixerlab.config.compose import complete, without_hydra
from mixerlab.config.override_text import as_override
from mixerlab.config.postponed import GROUPS
from mixerlab.config.settings import settings_of
from mixerlab.config.values import checked, code_versions
from mixerlab.records.files import run_folder
from mixerlab.records.identity import run_id
from mixerlab.sweeps.tables.columns import short_names
from mixerlab.training.trainer_config import KEPT, kept_in_sweep

ALL_SETTINGS = "task.setting=*"
MOST_SHOWN = 3  # errors listed in one message
# A step takes as long as its tokens and this many more: launches, optimizer, the small products. Read off the runs'
# wall times in results/rounding/rows.csv, T = 32 to 1024, all mixers together.
OVERHEAD_TOKENS = 50


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of the sweep."""

    overrides: list[str]
    results_dir: str
    folder: Path
    config: dict[str, Any]  # resolved
    label: tuple[str, str, str]  # mixer, task, setting
    code: dict[str, str]  # `mixerlab.config.values.code_versions` of it
    keeps: tuple[str, ...]  # the selections whose weights it keeps
    cost: float  # rows that it trains and scores, times tokens of each; orders the cells, longest first

    @property
    def run_id(self) -> str:
        return self.folder.name


class Composer:
    """Composes the cells of a sweep.

    Args:
        hydra_context, config: what Hydra gives a sweeper.
    """

    def __init__(self, hydra_context: HydraContext, config: DictConfig):
        self.loader, self.config = hydra_context.config_loader, config

    def cells(self, grid: Sequence[list[str]]) -> tuple[list[Cell], list[str]]:
        """The cells of a grid, and a line for each key that some of them do not have, which run without it.

        Args:
            grid: the overrides of each combination, in which `task.setting=*` may stand.

        Raises:
            ValueError: what cells are refused for, the first few of them.
            ConfigCompositionException: a key that no choice of the grid has.
        """
        cells: dict[Path, Cell] = {}
        refused: dict[str, str] = {}  # message -> the first cell that it is about
        keys = _Keys()
        for overrides in grid:
            wanted = [override for override in overrides if override != ALL_SETTINGS]
            cfg, without = self._compose_what_applies(wanted)
            keys.note(cfg, wanted, without)
            given = [override for override in wanted if override not in without]
            for of_setting, with_setting in _by_setting(cfg, given, every=ALL_SETTINGS in overrides):
                try:
                    cell = _cell(with_setting, of_setting)
                    cells[cell.folder.absolute()] = cell  # the same run reached twice is one cell
                except ValueError as error:
                    refused.setdefault(str(error), " ".join(with_setting))
        keys.require_each_somewhere()
        if refused:
            shown = [f"{message} ({cell})" if cell else message for message, cell in list(refused.items())[:MOST_SHOWN]]
            rest = len(refused) - len(shown)
            raise ValueError("\n".join([*shown, *([f"and {rest} other errors"] if rest else [])]))
        return list(cells.values()), keys.left_out()

    def applied(self, grid: Sequence[list[str]]) -> tuple[list[DictConfig], list[str]]:
        """The config of each combination of a grid, unchecked, and a line for each key that some of them do not have.

        Raises:
            ConfigCompositionException: a key that no choice of the grid has.
        """
        configs, keys = [], _Keys()
        for overrides in grid:
            cfg, without = self._compose_what_applies(overrides)
            keys.note(cfg, overrides, without)
            configs.append(cfg)
        keys.require_each_somewhere()
        return configs, keys.left_out(with_values=False)

    def cell(self, overrides: list[str]) -> Cell:
        """The cell of one combination of a grid, without the keys that its mixer, task and so on do not have.

        Raises:
            ValueError: what the cell is refused for.
        """
        cfg, without = self._compose_what_applies(overrides)
        return _cell([override for override in overrides if override not in without], cfg)

    def _compose_what_applies(self, overrides: list[str]) -> tuple[DictConfig, dict[str, ConfigCompositionException]]:
        """The config without the overrides whose key the chosen mixer, task and so on do not have; and these."""
        without: dict[str, ConfigCompositionException] = {}
        while True:
            try:
                return self._compose([override for override in overrides if override not in without]), without
            except ConfigCompositionException as error:
                key = getattr(error.__cause__, "full_key", None)
                found = [o for o in overrides if f"{_key(o)}.".startswith(f"{key}.") and o not in without]
                if not found or str(key).partition(".")[0] not in GROUPS:
                    raise
                without |= dict.fromkeys(found, error)

    def _compose(self, overrides: list[str]) -> DictConfig:
        with_hydra = self.loader.load_sweep_config(self.config, list(overrides))
        cfg = without_hydra(with_hydra)
        complete(cfg, with_hydra.hydra, self.loader)
        return cfg


@dataclass
class _Keys:
    """Which choices (of mixer, task and so on) have the key of an override, and which have not, and what Hydra says."""

    has: dict[str, set[str]] = field(default_factory=dict)
    has_not: dict[str, dict[str, ConfigCompositionException]] = field(default_factory=dict)

    def note(self, cfg: DictConfig, overrides: list[str], without: dict[str, ConfigCompositionException]) -> None:
        """Notes what the choices of `cfg` have of these overrides: all but those in `without`."""
        for override in overrides:
            if (group := _key(override).partition(".")[0]) in GROUPS:
                if override in without:
                    self.has_not.setdefault(override, {})[cfg[group].name] = without[override]
                else:
                    self.has.setdefault(override, set()).add(cfg[group].name)

    def require_each_somewhere(self) -> None:
        """Raises Hydra's error for a key that no choice has: a typing error."""
        for override, errors in self.has_not.items():
            if override not in self.has:
                raise next(iter(errors.values()))

    def left_out(self, with_values: bool = True) -> list[str]:
        """A line for each key that only some choices have, with the values that it was given."""
        values: dict[tuple[str, str], list[str]] = {}  # key, and what applies where -> its values
        for override, errors in self.has_not.items():
            key, _, value = override.partition("=")
            where = f"applies to {', '.join(sorted(self.has[override]))}; without it, as they have no such key, run"
            values.setdefault((key, f"{where}: {', '.join(sorted(errors))}"), []).append(value)
        return [
            f"{key}={','.join(given)} {where}" if with_values else f"{key} {where}"
            for (key, where), given in values.items()
        ]


def _by_setting(cfg: DictConfig, overrides: list[str], every: bool) -> Iterator[tuple[DictConfig, list[str]]]:
    """The config, or with `every` one for each setting of its task; and the overrides that give it."""
    if not every:
        yield cfg, overrides
        return
    for name in settings_of(cfg.task):
        of_setting = copy.deepcopy(cfg)  # faster than composing again, for one value
        of_setting.task.setting = name
        yield of_setting, [*overrides, f"task.setting={as_override(name)}"]


def _cell(overrides: list[str], cfg: DictConfig) -> Cell:
    task, config = checked(cfg)
    check_buildable(cfg, task, config)
    tokens = (3 * task.num_train_examples + task.num_val_examples) * (task.input_length + OVERHEAD_TOKENS)
    tokens += task.num_test_examples * (task.of_split("test").input_length + OVERHEAD_TOKENS)
    return Cell(
        overrides=overrides,
        results_dir=cfg.results_dir,
        folder=run_folder(cfg.results_dir, run_id(config)),
        config=config,
        label=(cfg.mixer.name, cfg.task.name, config["task"]["setting"]),
        code=code_versions(config),
        keeps=KEPT[kept_in_sweep(cfg.trainer.keep_weights)],
        cost=tokens * cfg.trainer.epochs,
    )


def told_apart(cells: list[Cell]) -> dict[Cell, str]:
    """What to call each cell: its label, and the overrides by which it differs from others of this label."""
    of_label: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        of_label.setdefault(cell.label, []).append(cell)
    names = {}
    for label, own in of_label.items():
        given = {cell: dict(override.lstrip("+").partition("=")[::2] for override in cell.overrides) for cell in own}
        keys = list(dict.fromkeys(key for values in given.values() for key in values))
        differ = [key for key in keys if len({values.get(key) for values in given.values()}) > 1]
        short = short_names(differ)
        for cell, values in given.items():
            swept = [f"{short[key]}={values[key]}" for key in differ if key in values]
            names[cell] = ", ".join([" ".join(label), *swept])
    return names


def _key(override: str) -> str:
    return override.partition("=")[0]
