"""The sweeper `hydra/sweeper=optuna` of mixerlab, as Hydra finds it.

Every Hydra program in the environment imports this file, so it imports nothing of ours until it runs.
"""

from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper


class OptunaSweeper(BasicSweeper):
    """Looks for the values of some keys with the best validation accuracy, by Optuna's TPE sampler.

    Args:
        n_trials: how many runs.
        n_jobs: how many of them the launcher gets at a time.
        seed: of the sampler.
        params: keys and what they may be, as on the command line.
    """

    def __init__(self, n_trials: int, n_jobs: int = 1, seed: int = 0, params: dict[str, str] | None = None):
        super().__init__(max_batch_size=None, params=params)
        for name, value, least in (("n_trials", n_trials, 1), ("n_jobs", n_jobs, 1), ("seed", seed, 0)):
            if type(value) is not int or value < least:
                raise ValueError(f"hydra.sweeper.{name}={value!r} must be a whole number of at least {least}")
        self.n_trials, self.n_jobs, self.seed = n_trials, n_jobs, seed

    def sweep(self, arguments: list[str]) -> list[Any]:
        from mixerlab.sweeps.launch.search import Search
        from mixerlab.sweeps.launch.sweep import Sweep

        assert self.hydra_context is not None and self.config is not None and self.launcher is not None
        sweep = Sweep(self.hydra_context, self.config, self.launcher)
        Search(sweep, n_trials=self.n_trials, n_jobs=self.n_jobs, seed=self.seed).run(
            [*self._parse_config(), *arguments]
        )
        return []
