"""The launcher `hydra/launcher=ray_tasks` of mixerlab, as Hydra finds it.

Every Hydra program in the environment imports this file, so it imports nothing of ours until it runs.
"""

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


class RayTaskLauncher(Launcher):
    """Runs each cell as a task of Ray.

    Args:
        ray: `init`, the arguments of `ray.init`, and `remote`, those of `ray.remote`.
    """

    def __init__(self, ray: DictConfig):
        self.options: Any = OmegaConf.to_container(ray, resolve=True)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from hydra.core.singleton import Singleton

        from mixerlab.sweeps.launch.processes import Work
        from mixerlab.sweeps.launch.ray_tasks import Options, run_in_tasks

        work = Work(self.hydra_context, self.config, self.task_function, Singleton.get_state()["instances"])
        return run_in_tasks(job_overrides, initial_job_idx, work, Options(**self.options))
