"""What Hydra calls: trains one run, or one cell of a sweep, and says what came of it.

PyTorch, Lightning, pandas and matplotlib are imported where they are used: `--help` needs none of them.
"""

import logging
import sys
from pathlib import Path

import hydra
from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from mixerlab.config.hybrid import expand
from mixerlab.config.project import use_project
from mixerlab.config.settings import register_resolvers
from mixerlab.records.interruption import GOES_ON

log = logging.getLogger(__name__)
_OF_SWEEPS = {"hydra/sweeper": "grid", "hydra/launcher": "basic"}  # what only a sweep uses, and the defaults


def _processes() -> int:
    """How many processes a sweep on this host starts: one for each GPU, or else one for every two cores."""
    import torch

    from mixerlab.sweeps.launch.processes import cpu_cores

    return torch.cuda.device_count() or max(1, cpu_cores() // 2)


register_resolvers()
OmegaConf.register_new_resolver("processes", _processes, replace=True)


def train_cell(cfg: DictConfig) -> str | None:
    """Returns the `run_id` of what was trained or found finished, or None if another process is training it."""
    hydra_config = HydraConfig.get()
    in_sweep = hydra_config.mode == RunMode.MULTIRUN
    if in_sweep:
        _prepare_worker(cfg)
    from mixerlab.train import PATIENCE, RunFailed, run, run_state

    try:
        use_project(hydra_config)
        expand(cfg, hydra_config, GlobalHydra.instance().config_loader())
        if not in_sweep:
            _say_what_is_left_out(hydra_config)
        if cfg.dry_run:
            folder, state = run_state(cfg)
            print(OmegaConf.to_yaml(cfg, resolve=True))
            print(f"# {folder}: {state}")
            return None
        record = run(cfg, patience=0 if in_sweep else PATIENCE)  # a sweep comes back to what it could not claim
    except (ValueError, OSError, RunFailed) as error:
        if in_sweep:
            raise  # the sweep goes on, and says at its end which cells failed
        sys.exit(f"error: {_message(error)}")
    if in_sweep:
        return record["run_id"] if record else None
    if record is None:
        _say_who_trains(cfg)
        return None
    _print_result(cfg.results_dir, record)
    return record["run_id"]


def _say_what_is_left_out(hydra_config: HydraConf) -> None:
    """Of an experiment with a grid, a single run trains one cell; a search or a launcher is of no use to it."""
    choices = hydra_config.runtime.choices
    for group, default in _OF_SWEEPS.items():
        if (chosen := choices.get(group, default)) != default:
            log.warning("%s=%s has no effect on a single run: add -m to sweep", group, chosen)
    if grid := hydra_config.sweeper.get("params"):
        given = " ".join(f"{key}={value}" for key, value in grid.items())
        experiment = choices.get("experiment")
        log.warning("one run, and not the grid %s of experiment=%s: -m trains it", given, experiment)


def _message(error: Exception) -> str:
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror or error}{where}; fix this, then run the same command again: it {GOES_ON}"
    traceback = getattr(error, "traceback", None)  # of RunFailed
    return f"{error}; its traceback: {traceback}" if traceback else str(error)


def _say_who_trains(cfg: DictConfig) -> None:
    from mixerlab.records.claims import holder
    from mixerlab.train import run_state

    folder, _ = run_state(cfg)
    log.info("another process is training this run (%s); nothing to do here", holder(folder))


def _prepare_worker(cfg: DictConfig) -> None:
    """Makes this process one that trains cells of a sweep: quiet, on a GPU of its own."""
    from mixerlab.training.devices import claim_gpu
    from mixerlab.training.trainer_config import kept_in_sweep

    logging.disable(logging.INFO)  # the sweep shows its own progress
    cfg.trainer.progress = False
    cfg.trainer.keep_weights = kept_in_sweep(cfg.trainer.keep_weights)
    claim_gpu()


def _print_result(results_dir: str, record: dict) -> None:
    from mixerlab.records.files import RECORD_FILE, run_folder

    folder = run_folder(results_dir, record["run_id"])
    print(f"\n{_summary(record)}\n\nrecord: {folder / RECORD_FILE}", flush=True)
    try:
        print(f"figure: {_figure(folder)}")
    except (ValueError, OSError) as error:
        sys.exit(f"error: the run is finished and recorded, but its figure cannot be drawn: {_message(error)}")


def _figure(folder: Path) -> Path:
    """The run's curves, drawn unless they were drawn from the same record before."""
    from mixerlab.records.files import RECORD_FILE

    figure = folder / "curves.png"
    if not figure.exists() or figure.stat().st_mtime_ns < (folder / RECORD_FILE).stat().st_mtime_ns:
        from mixerlab.sweeps.figures.canvas import save
        from mixerlab.sweeps.figures.run import run_curves

        figure = save(run_curves(folder), folder / "curves")[0]
    return figure


def _summary(record: dict) -> str:
    """The size of the model, and a line of scores for each replica."""
    head = record["rows"][0]
    lines = [
        f"{head['mixer']} on {head['task']} ({head['setting']}): {head['num_params']:,} parameters",
        f"{'accuracy on test':>37}",
        f"{'learning rate':>13}  {'seed':>4}  {'official':>8}  {'clean':>8}  status",
    ]
    for row in record["rows"]:
        scores = (row[f"{selection}_accuracy"] for selection in ("official", "clean"))
        official, clean = ("-" if score is None else f"{score:.3f}" for score in scores)
        reason = f": {row['error']}" if row["error"] else ""
        lines.append(f"{row['lr']:>13g}  {row['seed']:>4}  {official:>8}  {clean:>8}  {row['status']}{reason}")
    return "\n".join(lines)


main = hydra.main(version_base="1.3", config_path="pkg://mixerlab.conf", config_name="config")(train_cell)
