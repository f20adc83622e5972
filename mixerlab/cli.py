"""The `mixerlab` command: a run, a sweep, or one of a few tools, which the first argument names.

mixerlab mixer=parallax task=icr                            one run: all learning rates, trained together
mixerlab -m mixer=attn,parallax task=icr 'task.setting=*'   a sweep, ending in tables and figures
mixerlab -m experiment=mad_table                            the MAD table
mixerlab report [SOURCE]                                    tables and figures of the records so far
mixerlab check NAME [--config-dir DIR]                      checks that a mixer keeps the contract
mixerlab export DIR task=NAME                               writes a dataset in mad-lab's layout
mixerlab                                                    the help, as with --help
mixerlab --version                                          the version
"""

import importlib
import os
import shlex
import signal
import sys
from typing import NoReturn

from mixerlab.records.interruption import GOES_ON, Terminated, terminated_by_signal

TOOLS = {
    "check": "mixerlab.checks.command",
    "export": "mixerlab.export",
    "report": "mixerlab.sweeps.report.report",
}
_RAISE = "HYDRA_FULL_ERROR"  # if it is "1", Hydra raises what it would print


def main() -> None:
    """Ends the process with the tool's exit status, or returns after a run or a sweep. Without arguments: the help.

    Ctrl-C, SIGTERM, a full disk and a closed pipe end it with one line, whenever they come.
    """
    if "--version" in sys.argv[1:]:
        from mixerlab.records.provenance import versions

        print(f"mixerlab {versions().get('mixerlab', 'is not installed')}")
        return
    is_tool = len(sys.argv) > 1 and sys.argv[1] in TOOLS
    again = "does it again" if is_tool else GOES_ON
    with terminated_by_signal():
        try:
            if is_tool:
                tool = importlib.import_module(TOOLS[sys.argv[1]])
                sys.exit(tool.main(sys.argv[2:]))
            _train()
        except Terminated:
            _end(signal.SIGTERM, f"the same command {again}")
        except KeyboardInterrupt:
            _end(signal.SIGINT, f"the same command {again}")
        except BrokenPipeError:  # `mixerlab report | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at the end
            sys.exit(128 + signal.SIGPIPE)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            sys.exit(f"error: {error.strerror or error}{where}; fix this, then run the same command again: it {again}")


def _train() -> None:
    """A run, a sweep or one of Hydra's options; ends the process with a message if Hydra refuses the arguments."""
    arguments = sys.argv[1:] or ["--help"]
    if "=" not in arguments[0] and not arguments[0].startswith(("-", "~")):
        sys.exit(f"error: no tool {arguments[0]}: {', '.join(TOOLS)}; settings are KEY=VALUE")
    from hydra.errors import HydraException
    from yaml import MarkedYAMLError

    from mixerlab.config.hints import check_choices, refusal
    from mixerlab.config.postponed import postponed
    from mixerlab.main import main as train
    from mixerlab.records.provenance import COMMAND

    arguments = _overrides_first(arguments)
    try:
        check_choices(arguments)
    except ValueError as error:
        sys.exit(f"error: {error}")
    os.environ[COMMAND] = shlex.join(sys.argv)
    sys.argv[1:] = postponed(arguments)
    wants_tracebacks = os.environ.get(_RAISE) == "1"
    os.environ[_RAISE] = "1"
    try:
        train()
    except (HydraException, MarkedYAMLError) as error:
        if wants_tracebacks:
            raise
        sys.exit(f"error: {refusal(error, tools=TOOLS)}")
    finally:
        del os.environ[COMMAND]
        if not wants_tracebacks:
            del os.environ[_RAISE]


def _overrides_first(arguments: list[str]) -> list[str]:
    """The arguments with the overrides before the options: Hydra refuses an override behind the value of an option.

    Ends the process with a message for an option that Hydra does not have.
    """
    from hydra._internal.utils import get_args_parser

    given, unknown = get_args_parser().parse_known_intermixed_args(arguments)
    if options := [argument for argument in unknown if argument.startswith("-")]:
        sys.exit(f"error: there is no option {options[0]}; settings are KEY=VALUE, without dashes")
    overrides = given.overrides or []
    options = list(arguments)
    for override in overrides:
        options.remove(override)
    return [*overrides, *options]


def _end(number: signal.Signals, again: str) -> NoReturn:
    print(f"stopped by {number.name}: {again}", file=sys.stderr)
    sys.exit(128 + number)
