"""The sweeper and the launcher of mixerlab, as Hydra finds them: `hydra/sweeper=...` and `hydra/launcher=...`.

Every Hydra program in the environment imports this file, so it imports nothing of ours until it runs.
"""

from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.plugins.launcher import Launcher
from omegaconf import OmegaConf


class FunctionSweeper(BasicSweeper):
    """Gives a function a sweep, and the overrides of the command and of an experiment's `params`.

    Args:
        run: its name: `mixerlab.sweeps.launch.grid.run_grid` or `mixerlab.sweeps.launch.search.run_search`.
        params: keys and their values, as on the command line.
        options: what else the function takes.
    """

    def __init__(self, run: str, params: dict[str, str] | None = None, **options: Any):
        super().__init__(max_batch_size=None, params=params)
        self.run, self.options = run, options

    def sweep(self, arguments: list[str]) -> list[Any]:
        """Raises ValueError if the sweep is refused."""
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.utils import get_method

        from mixerlab.records.schema import CHOICES
        from mixerlab.sweeps.launch.cells import Composer
        from mixerlab.sweeps.launch.sweep import Sweep

        assert self.hydra_context is not None and self.config is not None
        loader = self.hydra_context.config_loader
        for key, value in (self.params or {}).items():
            if key in (*CHOICES, "experiment") and not isinstance(value, str):
                raise ValueError(f"hydra.sweeper.params.{key} is no string: write its choices as `{key}: a,b`")
        sweep = Sweep(self.config, Composer(loader, self.config), _executor(self.launcher))
        parser = OverridesParser.create(config_loader=loader)
        overrides = parser.parse_overrides([*self._parse_config(), *arguments])
        get_method(self.run)(sweep, overrides, **self.options)
        return []


class ExecutorLauncher(Launcher):
    """Has the class of an executor (`mixerlab.sweeps.launch.executors`) and its options, for our sweeper."""

    def __init__(self, executor: str, **options: Any):
        self.executor, self.options = executor, options

    def setup(self, **_: Any) -> None:
        pass

    def launch(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("this hydra/launcher is for hydra/sweeper=grid and hydra/sweeper=optuna")


def _executor(launcher: Launcher | None) -> Any:
    """The executor of a launcher; ValueError if that is not ours."""
    from hydra.utils import get_class

    from mixerlab.sweeps.launch.executors import Serial
    from mixerlab.train import run_cell

    if isinstance(launcher, ExecutorLauncher):
        options: Any = OmegaConf.to_container(OmegaConf.create(launcher.options), resolve=True)
        return get_class(launcher.executor)(run_cell, **options)
    if isinstance(launcher, BasicLauncher):
        return Serial(run_cell)
    raise ValueError("hydra/launcher: choose basic (one run after another), processes, slurm or ray_tasks")
