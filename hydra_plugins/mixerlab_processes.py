"""The launcher `hydra/launcher=processes` of mixerlab, as Hydra finds it.

Every Hydra program in the environment imports this file, so it imports nothing of ours until it runs.
"""

from collections.abc import Sequence

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class ProcessLauncher(Launcher):
    """Runs several cells at a time on this host, each process one after another.

    Args:
        n_jobs: how many at a time.
    """

    def __init__(self, n_jobs: int):
        if type(n_jobs) is not int or n_jobs < 1:
            raise ValueError(f"hydra.launcher.n_jobs={n_jobs!r} must be a whole number of at least 1")
        self.n_jobs = n_jobs

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from hydra.core.singleton import Singleton

        from mixerlab.sweeps.launch.processes import Work, run_in_processes

        work = Work(self.hydra_context, self.config, self.task_function, Singleton.get_state()["instances"])
        return run_in_processes(job_overrides, initial_job_idx, work, self.n_jobs)
