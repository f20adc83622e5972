"""The options of `mixerlab report`; `sweeps.compare` shares those for the width of figures."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from mixerlab.records.best import Selection
from mixerlab.sweeps.figures.canvas import FORMATS, WIDTHS
from mixerlab.sweeps.tables.sources import has_runs

DEFAULT_SOURCE = "results"
_SEVERAL = ("mixer", "task", "where", "by")  # options that take any number of words


def parse_options(description: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command (None: of this process); an error ends the process with a message."""
    parser = argparse.ArgumentParser(
        prog="mixerlab report", usage="%(prog)s [SOURCE] [OPTION ...]", description=description
    )
    parser.add_argument(
        "source",
        nargs="?",
        metavar="SOURCE",
        help=f"a results folder (default: {DEFAULT_SOURCE}), an archive of records, or a report's rows.csv; before the"
        " options",
    )
    parser.add_argument("--out", help="where to write (default: report/ in that folder, or beside that file)")
    parser.add_argument(
        "--selection",
        choices=[*get_args(Selection), "both"],
        default="both",
        help="how checkpoint and learning rate are chosen: official, on test; clean, on validation (default: both)",
    )
    parser.add_argument("--mixer", nargs="+", action="extend", default=[], help="only these mixers")
    parser.add_argument("--task", nargs="+", action="extend", default=[], help="only these tasks")
    parser.add_argument("--sweep", metavar="NAME", help="only the runs of this sweep (sweep=NAME, or its experiment)")
    parser.add_argument(
        "--where",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="only records with all of these values, such as optimizer.name=adamw; model.d_model=64,128 is either",
    )
    parser.add_argument(
        "--by",
        nargs="+",
        action="extend",
        metavar="KEY",
        help="a column for each value of these keys, such as model.d_model, and no other; `--by mixer`: one per mixer"
        " (default: the keys that were swept; those of the task always have rows of their own)",
    )
    add_width(parser)
    parser.add_argument(
        "--bare",
        action="store_true",
        help="for captions of your own: figures without title and subtitle, LaTeX tables without notes below them",
    )
    parser.add_argument(
        "--format", nargs="+", type=_format, default=["png"], metavar="FORMAT", help="png (default), pdf, svg"
    )
    parser.add_argument("--html", action="store_true", help="also write report.html, one page with everything")
    given = parser.parse_args(arguments)
    if given.source is None:
        if (taken := _taken_for_a_word(given)) is not None:
            option, word = taken
            parser.error(
                f"--{option} took {word} as one of its values. If it is SOURCE, give it first: mixerlab report {word}"
                f" --{option} ...; if not, give SOURCE too: mixerlab report {DEFAULT_SOURCE} --{option} ..."
            )
        given.source = DEFAULT_SOURCE
    return given


def add_width(parser: argparse.ArgumentParser) -> None:
    """The options for the width of figures, in inches as `width`."""
    width = parser.add_mutually_exclusive_group()
    width.add_argument(
        "--width",
        type=float,
        default=WIDTHS[2],
        metavar="INCHES",
        help=f"width of figures, such as 5.5 for NeurIPS and ICLR (default: {WIDTHS[2]})",
    )
    width.add_argument(
        "--columns",
        type=_columns,
        dest="width",
        default=argparse.SUPPRESS,
        metavar=f"{{{','.join(map(str, WIDTHS))}}}",
        help=f"width of figures in columns of ICML: 1 is --width {WIDTHS[1]}, 2 is --width {WIDTHS[2]}",
    )


def _columns(word: str) -> float:
    if word not in map(str, WIDTHS):
        raise argparse.ArgumentTypeError(f"{word} is not one of {', '.join(map(str, WIDTHS))}")
    return WIDTHS[int(word)]


def _format(word: str) -> str:
    if word not in FORMATS:
        raise argparse.ArgumentTypeError(f"{word} is not one of {', '.join(FORMATS)}; SOURCE comes before the options")
    return word


def _taken_for_a_word(given: argparse.Namespace) -> tuple[str, str] | None:
    """An option and a word of it that may be meant as SOURCE; argparse gives an option all words that follow it."""
    for option in _SEVERAL:
        for word in getattr(given, option) or ():
            if "=" not in word and ("/" in word or Path(word).is_file() or has_runs(word)):
                return option, word
    return None
