"""Names and notes as text in Markdown, LaTeX and CSV: what a user or a stranger calls a mixer runs nothing there."""

import re
from collections.abc import Mapping

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


_LATEX = {
    **{character: f"\\{character}" for character in "&%#_${}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "‡": r"$^{\ddagger}$",
    "†": r"$\dagger$",
    "±": r"$\pm$",
}


def escape_latex(text: str) -> str:
    """`text` as LaTeX prints it: no command, no formula, no comment."""
    return "".join(_LATEX.get(character, character) for character in one_line(text))


def no_formula(text: str) -> str:
    """`text` as a spreadsheet shows it, and does not compute it."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
