"""Names and notes as text in Markdown and LaTeX; and progress in lines."""

import re
import sys
import time
from collections.abc import Callable, Mapping

# `_` inside a word is no markup.
_MARKDOWN = re.compile(r"[\\`*\[<>|~]|(?<!\w)_|_(?!\w)")


def escape_markdown(text: str) -> str:
    """`text` as Markdown shows it, in a table as well: no markup, no HTML, no second column, no second line."""
    return _MARKDOWN.sub(lambda match: f"\\{match[0]}", one_line(text))


def counted(number: int, noun: str) -> str:
    """`1 cell`, `2 cells`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def captions_page(captions: Mapping[str, str]) -> str:
    """Markdown with the caption of each figure, by its name."""
    return "\n".join(f"`{name}`: {one_line(caption)}.\n" for name, caption in captions.items())


def one_line(text: str) -> str:
    """`text` in one line: what cannot be printed, line breaks included, is a space, and several spaces are one."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


_LATEX = {character: f"\\{character}" for character in "&%#_${}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "†": r"$\dagger$", "±": r"$\pm$"}


def escape_latex(text: str) -> str:
    """`text` as LaTeX prints it: no command, no formula, no comment."""
    return "".join(_LATEX.get(character, character) for character in one_line(text))


def duration(seconds: float) -> str:
    """`40 s`, `40 min`, `4.0 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


SECONDS_BETWEEN_LINES = 60.0


def is_terminal() -> bool:
    """Whether progress, on standard error, can redraw a line."""
    return sys.stderr.isatty()


class Lines:
    """Progress in a file or a pipe: a line now and then, and only what is new."""

    def __init__(self) -> None:
        self.told_at = time.monotonic()
        self.last = ""

    def tell(self, text: Callable[[], str], at_once: bool = False) -> None:
        """Prints `text()` to standard error, at most once in `SECONDS_BETWEEN_LINES`; `at_once`: whatever the time."""
        if not at_once and time.monotonic() - self.told_at < SECONDS_BETWEEN_LINES:
            return
        line = text()
        if line != self.last:
            print(line, file=sys.stderr, flush=True)
        self.told_at, self.last = time.monotonic(), line
