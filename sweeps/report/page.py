"""A report as one HTML page that needs no network: tables that sort, the records behind each entry, and the figures.

All that comes from records is escaped, and the page's policy lets no script run but its own.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from mixerlab.records.names import AVERAGE, setting_rank
from mixerlab.records.text import one_line
from mixerlab.sweeps.tables.collect import REPORTED, Selection
from mixerlab.sweeps.tables.tables import Score, Table, best_of, text_of

Row = dict[str, Any]
Place = tuple[str, str, str]  # mixer, task, setting

_HEADINGS = {"accuracy": "By task", "challenge": "The harder set", "settings": "By setting", "lengths": "By length"}
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums }
.wide { overflow-x: auto }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top }
th.name, td.name { text-align: left; white-space: nowrap }
thead th { cursor: pointer; border-bottom: 2px solid #888; user-select: none }
thead th[aria-sort=ascending]::after { content: " \\2191" }
thead th[aria-sort=descending]::after { content: " \\2193" }
summary { cursor: pointer; list-style: none }
.best { font-weight: 700 }
.none { color: #999 }
details table { font-size: 12px; font-weight: 400 }
.chosen { background: #eef6ee }
img { max-width: 100%; height: auto }
figure { margin: 1.2rem 0 }
ul { padding-left: 1.2rem }
"""
_SCRIPT = """
"use strict";
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, place) => head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = row => row.cells[place].dataset.value;
    const rows = [...table.tBodies[0].rows];
    rows.sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === "" || b === "") return (a === "") - (b === "");  // what has no score is last
      const order = isNaN(a) || isNaN(b) ? a.localeCompare(b, "en", {numeric: true}) : a - b;
      return down ? -order : order;
    });
    table.tBodies[0].append(...rows);
  }));
}
"""


@dataclass(frozen=True)
class Part:
    """What one selection shows.

    Attributes:
        selection, heading, explained: which it is, in words, and how it was chosen.
        tables: by name.
        cells: as `sweeps.collect.best_per_cell` gives them.
        in_means: those of the cells that means are over.
        pictures: by heading.
    """

    selection: Selection
    heading: str
    explained: str
    tables: Mapping[str, Table]
    cells: pd.DataFrame
    in_means: pd.DataFrame
    pictures: Sequence[tuple[str, Path]]


def page(title: str, parts: Iterable[Part], frame: pd.DataFrame) -> str:
    """The page; `frame` has a row for each replica (`sweeps.collect.collect`), under the names that the tables have."""
    known = frame[frame["mixer"].notna()]
    groups: dict[Place, list[Row]] = {}
    for row in known.to_dict("records"):
        groups.setdefault((row["mixer"], row["task"], row["setting"]), []).append(row)
    body = [f"<h1>{_text(title)}</h1>"]
    for part in parts:
        body.append(f"<h2>{_text(part.heading)}</h2><p>{_text(part.explained)}</p>")
        body.append("<p>A click on a heading sorts, a click on a number shows the records behind it.</p>")
        for heading, table in part.tables.items():
            cells = part.in_means if heading in ("accuracy", "challenge") else part.cells
            chosen = {(cell.mixer, cell.task, cell.setting): set(cell.replicas) for cell in cells.itertuples()}
            body.append(
                f"<h3>{_text(_HEADINGS.get(heading, heading))}</h3>{_table(table, part.selection, groups, chosen)}"
            )
        for heading, picture in part.pictures:
            data = base64.b64encode(picture.read_bytes()).decode()
            caption = _text(heading)
            body.append(f'<figure><img alt="{caption}" src="data:image/png;base64,{data}"></figure>')
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + f"\n<script>{_SCRIPT}</script>\n</body></html>\n"
    )


def _table(table: Table, selection: Selection, groups: Mapping[Place, list[Row]], chosen: Mapping[Place, set]) -> str:
    names = "".join(f'<th class="name">{_text(label)}</th>' for label in table.labels)
    heads = "".join(f"<th>{_text(mixer)}</th>" for mixer in table.mixers)
    lines = []
    for place, (name, row) in enumerate(table.rows.items()):
        best, about = best_of(row), table.about.get(name, name)
        cells = "".join(f'<td class="name" data-value="{place}">{_text(part)}</td>' for part in name)
        for mixer in table.mixers:
            behind = [
                (where, rows)
                for where, rows in groups.items()
                if where[0] == mixer and where[1:][: len(about)] == about
            ]
            cells += _entry(row[mixer], mixer in best, selection, [] if name == (AVERAGE,) else behind, chosen)
        lines.append(f"<tr>{cells}</tr>")
    notes = "".join(f"<li>{_text(note)}</li>" for note in table.notes)
    return (
        f'<div class="wide"><table class="sorts"><thead><tr>{names}{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div><ul>{notes}</ul>"
    )


def _entry(
    score: Score,
    is_best: bool,
    selection: Selection,
    behind: Sequence[tuple[Place, list[Row]]],
    chosen: Mapping[Place, set],
) -> str:
    text = _text(text_of(score))
    value = "" if score.mean is None else repr(score.mean)
    kind = "best" if is_best else "none" if score.mean is None else "score"
    if behind:
        text = f"<details><summary>{text}</summary>{_records(behind, selection, chosen)}</details>"
    return f'<td class="{kind}" data-value="{value}">{text}</td>'


def _records(behind: Sequence[tuple[Place, list[Row]]], selection: Selection, chosen: Mapping[Place, set]) -> str:
    """The replicas behind an entry, those that count on green ground."""
    lines = []
    for place, rows in sorted(behind, key=lambda entry: setting_rank(entry[0][2])):
        for row in sorted(rows, key=lambda row: (row["lr"], row["seed"])):
            accuracy = row[REPORTED[selection]]
            scored = row["status"] == "finished" and isinstance(accuracy, float | int)
            counts = scored and (row["run_id"], int(row["replica"])) in chosen.get(place, ())
            values = [place[2], row["run_id"], f"{row['lr']:g}", f"{row['seed']:.0f}"]
            values.append(f"{accuracy:.3f}" if scored else str(row["status"]))
            marked = ' class="chosen"' if counts else ""
            lines.append(f"<tr{marked}>{''.join(f'<td>{_text(value)}</td>' for value in values)}</tr>")
    heads = "".join(f"<th>{head}</th>" for head in ("setting", "run_id", "learning rate", "seed", "accuracy"))
    return f"<table><tr>{heads}</tr>{''.join(lines)}</table>"


def _text(text: str) -> str:
    return escape(one_line(text), quote=True)
