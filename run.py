"""Trains a sequence mixer on a MAD task and records its score.

Whatever `conf/` sets can be changed on the command line:

    python run.py mixer=parallax task=icr                            one run: all learning rates at once
    python run.py -m mixer=attn,parallax task=icr 'task.setting=*'   a sweep, ending in tables and figures
    python run.py -m experiment=mad_table                            the paper's table
"""

import logging
import math
import os
import sys
import traceback
import warnings
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import nn

from sweeps import record as records
from sweeps.plots import save
from sweeps.provenance import provenance
from sweeps.run_figure import run_curves
from sweeps.workers import keep_process
from tasks.base import Task
from tasks.data import load_or_generate
from tasks.settings import build_task, register_resolvers, setting_name
from training.backbone import AutoEncoder, LanguageModel
from training.devices import claim_gpu
from training.fit import RunResult, TrainerConfig, train

log = logging.getLogger(__name__)

ERROR_FILE = "error.txt"  # the traceback of a run that failed, beside its record

register_resolvers()
# Processes of a sweep on one host: one a GPU, else one for each two cores.
OmegaConf.register_new_resolver(
    "processes", lambda: torch.cuda.device_count() or max(1, (os.cpu_count() or 1) // 2), replace=True
)


def component(cfg: DictConfig, **arguments):
    """Instantiates a config whose `name` is a label, and passes on what its constructor refuses in one line."""
    try:
        return instantiate({key: value for key, value in cfg.items() if key != "name"}, **arguments)
    except InstantiationException as error:
        if isinstance(error.__cause__, ValueError):
            raise error.__cause__ from None
        raise


def build_model(cfg: DictConfig, task: Task) -> nn.Module:
    """One replica's model for `task`: a language model, or the auto-encoder where the task asks for it."""
    for key, size in cfg.model.items():
        if type(size) is not int or size < 1:
            raise ValueError(f"model.{key}={size!r} must be a whole number of at least 1")
    make_mixer = partial(component, cfg.mixer, d_model=cfg.model.d_model)
    sizes = {"d_model": cfg.model.d_model, "n_layers": cfg.model.n_layers, "make_mixer": make_mixer}
    if task.autoencode:
        return AutoEncoder(task.vocab_size, task.input_length, **sizes)
    return LanguageModel(task.vocab_size, **sizes)


def _graph_key(config: dict, task: Task) -> str:
    """The same for runs whose steps launch the same operations, where precision and shapes of tensors are the same.

    It is the identity of a run less what a run keeps in tensors, and what a step does not see.
    """
    unseen = dict.fromkeys(("schedule", "seed", "trainer"))
    optimizer = config["optimizer"] | {"lr": None, "weight_decay": None}
    sizes = [task.vocab_size, task.input_length, task.autoencode]
    return records.run_id(config | unseen | {"optimizer": optimizer, "task": sizes})


def _replicas(config: dict) -> list[tuple[float, int]]:
    """The (learning rate, seed) of each replica."""
    rates, seeds = records.as_list(config["optimizer"]["lr"]), records.as_list(config["seed"])
    for key, values in (("optimizer.lr", rates), ("seed", seeds)):
        if not values:
            raise ValueError(f"{key}=[] names no replica: give a number, or a list of them")
    for lr in rates:
        if not (isinstance(lr, int | float) and 0 < lr < math.inf):
            raise ValueError(f"optimizer.lr={lr!r} must be a finite number above 0")
    for seed in seeds:
        if type(seed) is not int or not 0 <= seed < 2**31:
            raise ValueError(f"seed={seed!r} must be a whole number from 0 to 2^31 - 1")
    return [(float(lr), seed) for seed in seeds for lr in rates]


def run(cfg: DictConfig) -> dict | None:
    """Trains what `cfg` describes and writes its record, which it returns; None where another process has it."""
    records.check_writable(cfg.results_dir)
    task = build_task(cfg.task)  # before anything else resolves: its message for a wrong setting is the clear one
    config = OmegaConf.to_container(cfg, resolve=True)
    config["task"]["setting"] = setting_name(cfg.task)
    records.refuse_yes_and_no(config)
    replicas = _replicas(config)
    folder = records.run_folder(cfg.results_dir, records.run_id(config))
    with records.claim(folder) as ours:
        if not ours:
            return None
        if not cfg.force and records.is_finished(folder):
            log.info("%s is finished: skipped (force=true repeats it)", folder)
            return records.read_record(folder)
        if cfg.force:
            for checkpoint in folder.glob("resume-*.ckpt"):
                checkpoint.unlink()
        records.write_config(folder, config)
        started_at = datetime.now(UTC)
        try:
            record = _train(cfg, config, task, replicas, folder, started_at)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            (folder / ERROR_FILE).write_text(traceback.format_exc())
            origin = _provenance(started_at, RunResult(), {})
            records.write_record(folder, records.failed_record(config, reason, origin))
            raise
        records.write_record(folder, record)
        (folder / ERROR_FILE).unlink(missing_ok=True)  # of an earlier try
        return record


def _train(
    cfg: DictConfig, config: dict, task: Task, replicas: list[tuple[float, int]], folder: Path, started_at: datetime
) -> dict:
    trainer_config = TrainerConfig(**cfg.trainer)
    schedule = component(cfg.schedule)
    make_optimizer = partial(component, cfg.optimizer)
    model = build_model(cfg, task)  # one for its counts, and to refuse what does not fit before any training
    result = train(
        partial(build_model, cfg, task),
        load_or_generate(task, cfg.task.data_dir),
        replicas,
        lambda population, lr, schedule, total_steps: make_optimizer(
            population=population, lr=lr, schedule=schedule, total_steps=total_steps
        ),
        schedule,
        trainer_config,
        folder,
        [instantiate(logger, save_dir=folder) for logger in cfg.logger.values()],
        _graph_key(config, task),
    )
    mixer = model.blocks[0].mixer
    counts = {
        "num_params": sum(parameter.numel() for parameter in model.parameters()),
        "state_size": cfg.model.n_layers * mixer.state_size(task.input_length),
    }
    rows = [
        records.row_labels(config, number, lr, seed) | counts | measured
        for number, ((lr, seed), measured) in enumerate(zip(replicas, result.replicas, strict=True))
    ]
    records.write_metrics(folder, result.metrics)
    return {
        "run_id": records.run_id(config),
        "status": "finished",
        "error": None,
        "rows": rows,
        "provenance": _provenance(
            started_at, result, {cfg.mixer.name: mixer.resolved_backend(result.torch_device, result.dtype)}
        ),
    }


def _provenance(started_at: datetime, result: RunResult, backends: dict[str, str]) -> dict:
    return provenance(
        started_at=started_at,
        wall_time_s=(datetime.now(UTC) - started_at).total_seconds(),
        device=result.device,
        precision=result.dtype and str(result.dtype).removeprefix("torch."),
        backends=backends,
        notes=result.notes,
    )


def _summary(record: dict) -> str:
    """What a reader wants first: learning rate, accuracy, and where the rest is."""
    head = record["rows"][0]
    lines = [
        f"{head['mixer']} on {head['task']} ({head['setting']}): {head['num_params']:,} parameters",
        f"{'learning rate':>13}  {'seed':>4}  {'official':>8}  {'clean':>8}  status",
    ]
    for row in record["rows"]:
        scores = (row[f"{selection}_accuracy"] for selection in ("official", "clean"))
        official, clean = ("-" if score is None else f"{score:.3f}" for score in scores)
        lines.append(f"{row['lr']:>13g}  {row['seed']:>4}  {official:>8}  {clean:>8}  {row['status']}")
    return "\n".join(lines)


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> str | None:
    """The run_id of what was trained or found finished; None where another process has it."""
    in_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    if in_sweep:
        logging.disable(logging.INFO)  # the sweep shows its own progress
        cfg.trainer.progress = False
        claim_gpu()
        keep_process()
    # Lightning's own use of PyTorch, nothing that a user can act on.
    warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)` is deprecated")
    if cfg.dry_run:
        print(OmegaConf.to_yaml(cfg, resolve=True))
        return None
    try:
        record = run(cfg)
    except ValueError as error:
        if in_sweep:
            raise  # the sweep goes on, and says at its end which cells failed
        sys.exit(f"error: {error}")
    if in_sweep:
        return record and record["run_id"]
    if record is None:
        log.info("another process is training this run: left to it")
        return None
    folder = records.run_folder(cfg.results_dir, record["run_id"])
    figure = save(run_curves(folder), folder / "curves")[0]
    print(f"\n{_summary(record)}\n\nrecord: {folder / records.RECORD_FILE}\nfigure: {figure}")
    return record["run_id"]


if __name__ == "__main__":
    main()
