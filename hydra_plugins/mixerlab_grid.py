"""The sweeper of mixerlab, as Hydra finds it: in the namespace package `hydra_plugins`.

Every Hydra program in the environment imports this file, so it imports nothing of ours until it runs.
"""

import sys
from collections.abc import Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


def _key(override: str) -> str:
    return override.partition("=")[0]


class GridSweeper(BasicSweeper):
    """A grid of runs: trains those that are not finished, longest first, and ends in tables and figures."""

    def __init__(self, params: dict[str, str] | None = None):
        super().__init__(max_batch_size=None, params=params)  # everything that is to run is launched at once

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from mixerlab.config.postponed import GROUPS

        for key, value in (self.params or {}).items():
            if key in (*GROUPS, "experiment") and not isinstance(value, str):
                sys.exit(f"error: hydra.sweeper.params.{key} is no string: write its choices as `{key}: one,other`")
        # `results_dir=a,b` leaves the default in the sweep's own config, in which a launcher finds where to keep its
        # files: they go to the first of the folders. Of the other overrides only choices count: a key such as
        # `mixer.layers` may be one that the first cell does not have.
        self.hydra_context = hydra_context
        first = [override for override in self.grid(config.hydra.overrides.task)[0] if "." not in _key(override)]
        config.results_dir = hydra_context.config_loader.load_sweep_config(config, first).results_dir
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def sweep(self, arguments: list[str]) -> list[Any]:
        from mixerlab.sweeps.launch.sweep import Sweep

        assert self.hydra_context is not None and self.config is not None and self.launcher is not None
        Sweep(self.hydra_context, self.config, self.launcher).run(self.grid(arguments))
        return []

    def grid(self, arguments: Sequence[str]) -> list[list[str]]:
        """The overrides of each combination of choices."""
        from hydra.core.override_parser.overrides_parser import OverridesParser

        assert self.hydra_context is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        (grid,) = self.split_arguments(parser.parse_overrides([*self._parse_config(), *arguments]), None)
        return grid
