"""The `mixerlab` command: a run, a sweep, or one of a few tools, which the first argument names.

Everything slow is imported where it is used: `--help` needs neither PyTorch nor pandas.
"""

import importlib
import logging
import os
import signal
import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from mixerlab.records.errors import Terminated
from mixerlab.records.text import one_line

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from mixerlab.records.schema import Record

log = logging.getLogger(__name__)

TOOLS = {
    "analyse": "mixerlab.analyse",
    "check": "mixerlab.checks.command",
    "compare": "mixerlab.sweeps.report.compare",
    "generate": "mixerlab.generate",
    "report": "mixerlab.sweeps.report.report",
}
# What the command of a run that was stopped does when it is given again.
GOES_ON = "goes on from the last checkpoint, or from the start if there is none yet"
_FULL_ERROR = "HYDRA_FULL_ERROR"  # if it is "1", Hydra raises what it would print


def main() -> None:
    """Runs the command; a mistake, Ctrl-C, SIGTERM, a full disk and a closed pipe end the process with one line."""
    # Before PyTorch is imported: OpenMP's threads wait for each other in a loop, in the way of any other process.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    arguments = [_at_home(argument) for argument in sys.argv[1:]] or ["--help"]
    if "--version" in arguments:
        from mixerlab.records.provenance import versions

        print(f"mixerlab {versions().get('mixerlab', 'is not installed')}")
        return
    before = 0
    while arguments[before:] and arguments[before].startswith("--config-dir"):  # first, as runs may have it
        before += 1 if "=" in arguments[before] else 2
    if arguments[before:] and arguments[before] in TOOLS:
        arguments = [arguments[before], *arguments[:before], *arguments[before + 1 :]]
    is_tool = arguments[0] in TOOLS
    again = "does it again" if is_tool else GOES_ON
    former = signal.signal(signal.SIGTERM, _terminate)
    try:
        if is_tool:
            importlib.import_module(TOOLS[arguments[0]]).main(arguments[1:])
        else:
            _run_hydra(arguments)
    except (Terminated, KeyboardInterrupt) as stop:
        number = signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT
        print(f"stopped by {number.name}: the same command {again}", file=sys.stderr)
        sys.exit(128 + number)
    except BrokenPipeError:  # `mixerlab report | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at the end
        sys.exit(128 + signal.SIGPIPE)
    except (ValueError, OSError) as error:
        if os.environ.get(_FULL_ERROR) == "1":
            raise
        sys.exit(f"error: {_message(error, again)}")
    finally:
        signal.signal(signal.SIGTERM, former or signal.SIG_DFL)  # None: a library loaded before Python has set it


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(128 + number)


def _at_home(argument: str) -> str:
    """`KEY=~/...` with the home folder in it: a shell leaves that as it is, and Hydra reads no value that begins so."""
    key, _, value = argument.partition("=")
    return f"{key}={Path.home()}{value[1:]}" if value.startswith("~/") else argument


def _message(error: Exception, again: str = GOES_ON) -> str:
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{where}; fix this, then run the same command again: it {again}"
    traceback = getattr(error, "traceback", None)  # of RunFailed
    return one_line(f"{error}; its traceback: {traceback}" if traceback else str(error))


def _run_hydra(arguments: list[str]) -> None:
    """A run, a sweep or one of Hydra's options; ValueError for what Hydra refuses."""
    if "=" not in arguments[0] and not arguments[0].startswith(("-", "~")):
        raise ValueError(f"no tool {arguments[0]}: {', '.join(TOOLS)}; settings are KEY=VALUE")
    import hydra

    from mixerlab.config.hints import one_line_refusals
    from mixerlab.records.provenance import shell_command

    command = shell_command(*sys.argv)

    def train(cfg: "DictConfig") -> None:
        _train_run(cfg, command)

    wants_tracebacks = os.environ.get(_FULL_ERROR) == "1"
    os.environ[_FULL_ERROR] = "1"
    try:
        with one_line_refusals():
            sys.argv[1:] = _left_to_cells(_overrides_first(arguments))
            hydra.main(version_base="1.3", config_path="pkg://mixerlab.conf", config_name="config")(train)()
    finally:
        if not wants_tracebacks:
            del os.environ[_FULL_ERROR]


def _overrides_first(arguments: list[str]) -> list[str]:
    """The overrides before the options: Hydra refuses an override behind the value of an option.

    Hydra takes the last `--config-dir`, and those before it in its search path.
    """
    from hydra._internal.utils import get_args_parser

    from mixerlab.config.project import check_yamls, search_path, use_folders

    args, unknown = get_args_parser().parse_known_intermixed_args(arguments)
    if args.experimental_rerun is not None:
        raise ValueError("--experimental-rerun would unpickle a file, which runs what it says: give the command again")
    if options := [argument for argument in unknown if argument.startswith("-")]:
        raise ValueError(f"there is no option {options[0]}; settings are KEY=VALUE, without dashes")
    overrides = args.overrides or []
    options = [argument for argument in arguments if argument not in overrides]
    spaced = [value for option, value in pairwise(options) if option in ("--config-dir", "-cd")]
    folders = spaced + [option.partition("=")[2] for option in options if option.startswith("--config-dir=")]
    earlier = [folder for folder in folders if folder != args.config_dir]
    check_yamls(use_folders([*earlier, args.config_dir] if args.config_dir else []))
    return [*overrides, *search_path([f"file://{Path(folder).resolve()}" for folder in earlier]), *options]


def _left_to_cells(arguments: list[str]) -> list[str]:
    """The arguments; in a sweep, each key of a group that has one value is a choice of it.

    Before a sweep Hydra composes a config of all single values with the default task and mixer, and would refuse
    `task=icr,sc task.num_tokens_to_copy=8`, since its `icr` has no such key. `choice(8)` is left to the cells.
    """
    if not {"-m", "--multirun"} & set(arguments):
        return arguments
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from mixerlab.records.schema import CHOICES

    parser, groups = OverridesParser.create(), tuple(f"{group}." for group in CHOICES)
    left = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key.startswith(groups):
            (override,) = parser.parse_overrides([argument])  # which refuses as Hydra does
            if not override.is_sweep_override() and override.value() not in (None, ""):  # Hydra has no such choices
                argument = f"{key}=choice({value})"
        left.append(argument)
    return left


def _train_run(cfg: "DictConfig", command: str) -> None:
    """What Hydra calls without -m, with what the user typed: trains one run, and says what came of it."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from mixerlab.config.compose import complete
    from mixerlab.config.project import command_line_folders, use_folders
    from mixerlab.records.provenance import COMMAND
    from mixerlab.train import RunFailed, run, run_state

    OmegaConf.get_cache(cfg)[COMMAND] = command
    hydra_config = HydraConfig.get()
    try:
        use_folders(command_line_folders(hydra_config))
        complete(cfg, hydra_config)
        if grid := hydra_config.sweeper.get("params"):  # of an experiment, of which one run trains one cell
            params = " ".join(f"{key}={value}" for key, value in grid.items())
            experiment = hydra_config.runtime.choices.get("experiment")
            log.warning("one run, and not the grid %s of experiment=%s: -m trains it", params, experiment)
        if cfg.get("dry_run"):
            folder, state = run_state(cfg)
            print(OmegaConf.to_yaml(cfg, resolve=True))
            print(f"# {folder}: {state}")
            return
        record = run(cfg)
    except (ValueError, OSError, RunFailed) as error:
        sys.exit(f"error: {_message(error)}")
    if record is not None:
        _print_result(cfg.results_dir, record)


def _print_result(results_dir: str, record: "Record") -> None:
    from mixerlab.records.files import RECORD_FILE, run_folder

    folder = run_folder(results_dir, record.run_id)
    print(f"\n{_summary(record)}\n\nrecord: {folder / RECORD_FILE}", flush=True)
    try:
        print(f"figure: {_figure(folder, folder / RECORD_FILE)}")
    except (ValueError, OSError) as error:
        sys.exit(f"error: the run is finished and recorded, but its figure cannot be drawn: {_message(error)}")


def _figure(folder: Path, record: Path) -> Path:
    """The run's curves, drawn unless they were drawn from the same record before."""
    figure = folder / "curves.png"
    if not figure.exists() or figure.stat().st_mtime_ns < record.stat().st_mtime_ns:
        from mixerlab.sweeps.figures.curves import run_curves
        from mixerlab.sweeps.figures.sheet import save

        figure = save(run_curves(folder), folder / "curves")[0]
    return figure


def _summary(record: "Record") -> str:
    """The size of the model, and a line of scores for each replica."""
    head = record.rows[0]
    lines = [
        f"{head['mixer']} on {head['task']} ({head['setting']}): {head['num_params']:,} parameters",
        f"{f'{record.score.label} on test':>37}",
        f"{'learning rate':>13}  {'seed':>4}  {'official':>8}  {'clean':>8}  status",
    ]
    for row in record.rows:
        scores = (row[f"{selection}_{record.score.name}"] for selection in ("official", "clean"))
        official, clean = ("-" if score is None else f"{score:.3f}" for score in scores)
        reason = f": {row['error']}" if row["error"] else ""
        lines.append(f"{row['lr']:>13g}  {row['seed']:>4}  {official:>8}  {clean:>8}  {row['status']}{reason}")
    return "\n".join(lines)
