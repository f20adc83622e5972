"""The cells of a sweep (mixer x task x setting x whatever else varies), composed, checked and built before any trains.

`task.setting=*` becomes all settings of its task, and a key that only some mixers or tasks have is left out for the
others.
"""

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf

from mixerlab.checks.buildable import check_buildable
from mixerlab.config.compose import completed
from mixerlab.config.hints import UnknownKey, unknown_key
from mixerlab.config.project import command_line_folders, note_folders, use_folders
from mixerlab.config.settings import settings_of
from mixerlab.config.values import checked
from mixerlab.records.files import run_folder
from mixerlab.records.identity import run_id
from mixerlab.records.provenance import COMMAND, shell_command
from mixerlab.records.schema import CHOICES
from mixerlab.tasks.base import SPLITS

ALL_SETTINGS = "task.setting=*"
_NAMED = ("mixer", "task", "task.setting")  # keys that a cell's label has
# A step takes as long as its tokens and this many more: launches, optimizer, the small products. Read off the runs'
# wall times in results/rounding/rows.csv.xz, T = 32 to 1024, all mixers together.
OVERHEAD_TOKENS = 50


@dataclass(frozen=True, eq=False)
class Cell:
    """One run of a sweep: its overrides of the command, its composed `cfg`, and what `checked` gives of that.

    `cost`: rows that it trains and scores, times tokens of each.
    """

    overrides: list[str]
    cfg: DictConfig
    config: dict[str, Any]
    code: dict[str, str]
    folder: Path
    cost: float

    @property
    def run_id(self) -> str:
        return self.folder.name

    @property
    def label(self) -> tuple[str, str, str]:
        """Mixer, task, setting."""
        return self.cfg.mixer.name, self.cfg.task.name, self.config["task"]["setting"]


class Composer:
    """Composes the cells of a sweep, from what Hydra gives a sweeper."""

    def __init__(self, loader: ConfigLoader, config: DictConfig):
        self.loader, self.config = loader, config
        self.folders = use_folders(command_line_folders(config.hydra))

    def cells(self, grid: Sequence[list[str]]) -> tuple[list[Cell], list[str]]:
        """The cells of a grid of overrides, also of `task.setting=*`, and a line for each key that only some have."""
        if not grid:
            raise ValueError("no run is asked for: a range or glob(...) of the command has no value")
        single = [[override for override in overrides if override != ALL_SETTINGS] for overrides in grid]
        composed, left_out = self.composed(single)
        cells: dict[str, Cell] = {}
        for asked, (cfg, applied) in zip(grid, composed, strict=True):
            for setting in settings_of(cfg.task) if ALL_SETTINGS in asked else (None,):
                own, overrides = cfg, applied
                if setting is not None:
                    own, overrides = copy.deepcopy(cfg), [*applied, f"task.setting={setting}"]
                    own.task.setting = setting  # faster than composing again, for one value
                try:
                    cell = self._cell(overrides, own)
                    cells[cell.run_id] = cell  # the same run reached twice is one cell
                except ValueError as error:
                    raise ValueError(f"{error} ({' '.join(overrides)})") from error
        return list(cells.values()), left_out

    def composed(self, grid: Sequence[list[str]]) -> tuple[list[tuple[DictConfig, list[str]]], list[str]]:
        """The config of each combination, unchecked, and the overrides that apply to it; lines as `cells` gives."""
        composed = []
        lacks: dict[str, dict[str, UnknownKey | None]] = {}  # by key and choice of its group: why
        for overrides in grid:
            cfg, applied, without = self._compose_what_applies(overrides)
            composed.append((cfg, applied))
            for override in overrides:
                key = _key(override)
                if (group := key.partition(".")[0]) in CHOICES:
                    lacks.setdefault(key, {})[cfg[group].name] = without.get(override)
        lines = []
        for key, choices in lacks.items():
            has = sorted(name for name, error in choices.items() if error is None)
            if errors := {name: error for name, error in choices.items() if error is not None}:
                if not has:
                    raise max(errors.values(), key=lambda error: error.meant is not None)  # a typing error
                others = f"without it, as they have no such key, run: {', '.join(sorted(errors))}"
                lines.append(f"{key} applies to {', '.join(has)}; {others}")
        return composed, lines

    def cell(self, overrides: list[str]) -> Cell:
        """The cell of one combination, without the keys that its mixer, task and so on do not have."""
        cfg, applied, _ = self._compose_what_applies(overrides)
        return self._cell(applied, cfg)

    def _compose_what_applies(self, overrides: list[str]) -> tuple[DictConfig, list[str], dict[str, UnknownKey]]:
        """The config, the overrides that are in it, and those whose key the chosen mixer, task and so on lack."""
        applied, without = overrides, dict[str, UnknownKey]()
        while True:
            try:
                return completed(self.loader.load_sweep_config(self.config, list(applied))), applied, without
            except ConfigCompositionException as error:
                if (unknown := unknown_key(error)) is None or unknown.key.partition(".")[0] not in CHOICES:
                    raise
                lacking = [override for override in applied if f"{_key(override)}.".startswith(f"{unknown.key}.")]
                if not lacking:
                    raise
                without |= dict.fromkeys(lacking, unknown)
                applied = [override for override in applied if override not in without]

    def _cell(self, overrides: list[str], cfg: DictConfig) -> Cell:
        task, config, code = checked(cfg)
        if cfg.results_dir != self.config.results_dir:
            raise ValueError(f"results_dir={cfg.results_dir}: a sweep has one folder, give one that all its runs share")
        check_buildable(cfg, task, config, code)
        note_folders(cfg, self.folders)
        options = [f"--config-dir={folder}" for folder in self.folders]
        OmegaConf.get_cache(cfg)[COMMAND] = shell_command(sys.argv[0], *options, *overrides)
        train, val, test = map(task.num_examples, SPLITS)
        epochs = config["trainer"]["epochs"]
        cost = (3 * (task.trained_rows or epochs * train) + epochs * val) * (task.input_length + OVERHEAD_TOKENS)
        cost += epochs * test * (task.for_split("test").input_length + OVERHEAD_TOKENS)
        return Cell(overrides, cfg, config, code, run_folder(cfg.results_dir, run_id(config)), cost)


def names_of(cells: Sequence[Cell]) -> dict[Cell, str]:
    """What to call each cell: mixer, task, setting, and the overrides by which it differs from others."""
    shared = set.intersection(*(set(cell.overrides) for cell in cells))
    names = {}
    for cell in cells:
        own = [each for each in cell.overrides if each not in shared and _key(each) not in _NAMED]
        own = [each for each in own if f",{each.removeprefix('task.')}," not in f",{cell.label[2]},"]  # it says these
        names[cell] = ", ".join([" ".join(cell.label), *own])
    return names


def _key(override: str) -> str:
    return override.partition("=")[0]
