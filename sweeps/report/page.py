"""A report as one HTML page that needs no network: tables that sort, the records behind each entry, and the figures.

All that comes from records is escaped, and the page's policy lets no script run but its own.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import pandas as pd

from mixerlab.records.best import Selection
from mixerlab.records.names import setting_rank
from mixerlab.records.text import one_line
from mixerlab.sweeps.tables.cells import Place
from mixerlab.sweeps.tables.columns import labels
from mixerlab.sweeps.tables.tables import Table, best_of, text_of

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; display: block; font-variant-numeric: tabular-nums; overflow-x: auto }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top }
.name { text-align: left }
thead th { cursor: pointer; border-bottom: 2px solid #888 }
thead th[aria-sort=ascending]::after { content: " \\2191" }
thead th[aria-sort=descending]::after { content: " \\2193" }
summary { cursor: pointer; list-style: none }
.best { font-weight: 700 }
details table { font-size: 12px; font-weight: 400 }
.chosen { background: #eef6ee }
img { max-width: 100%; height: auto }
"""
_HEADS = "<tr><th>setting</th><th>run_id</th><th>learning rate</th><th>seed</th><th>score</th></tr>"
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
      return down ? b - a : a - b;
    });
    table.tBodies[0].append(...rows);
  }));
}
"""


@dataclass(frozen=True)
class Section:
    """What one selection shows: tables by name, cells (`best_per_cell`), figures with their captions."""

    selection: Selection
    explained: str
    tables: Mapping[str, Table]
    cells: pd.DataFrame
    pictures: Sequence[tuple[str, Path]]


def page(title: str, sections: Iterable[Section], frame: pd.DataFrame) -> str:
    """The page; `frame` has a row for each replica (`spread_out`)."""
    body = [f"<h1>{_text(title)}</h1>", "<p>Click a heading to sort, a number to see the records behind it.</p>"]
    for section in sections:
        body.append(f"<h2>{section.selection} selection</h2><p>{_text(section.explained)}</p>")
        records = _records(section, frame)
        body += [f"<h3>{_text(name)}</h3>{_table(table, records)}" for name, table in section.tables.items()]
        for caption, picture in section.pictures:
            data = base64.b64encode(picture.read_bytes()).decode()
            body.append(f'<p><img alt="{_text(caption)}" src="data:image/png;base64,{data}"></p>')
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
    head += f"<title>{_text(title)}</title><style>{_STYLE}</style>"
    text = "\n".join([*body, f"<script>{_SCRIPT}</script>"])
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>\n{text}</body></html>\n'


def _table(table: Table, records: Mapping[Place, str]) -> str:
    lines = []
    for number, (name, row) in enumerate(table.rows.items()):
        best = best_of(row)
        cells = [f'<td class="name" data-value="{number}">{_text(part)}</td>' for part in name]
        for column in table.columns:
            entry, text = row[column], _text(text_of(row[column], table.most_seeds))
            place = (column, *name[:2])  # a task has the records of all its settings
            if behind := "".join(own for other, own in records.items() if other[: len(place)] == place):
                text = f"<details><summary>{text}</summary><table>{_HEADS}{behind}</table></details>"
            value = "" if entry.mean is None else repr(entry.mean)
            kind = "best" if column in best else "score"
            cells.append(f'<td class="{kind}" data-value="{value}">{text}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    heads = "".join(f"<th>{_text(name)}</th>" for name in (*table.labels, *labels(table.columns).values()))
    notes = "".join(f"<li>{_text(note)}</li>" for note in (*table.legend, *table.remarks))
    body = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<table class="sorts">{body}</table><ul>{notes}</ul>'


def _records(section: Section, frame: pd.DataFrame) -> dict[Place, str]:
    """The replicas behind each cell as rows of a table, those that count on green ground."""
    counting = {replica for cell in section.cells.itertuples() for replica in cell.replicas}
    made: dict[Place, str] = {}
    known = frame[frame["mixer"].notna()].sort_values(["lr", "seed"])
    for row in sorted(known.to_dict("records"), key=lambda row: setting_rank(row["setting"])):
        scored = row["status"] == "finished"
        chosen = scored and (row["run_id"], int(row["replica"])) in counting
        value = format(row[f"{section.selection}_{row['score']}"], ".3f") if scored else row["status"]
        texts = (row["setting"], row["run_id"], format(row["lr"], "g"), format(row["seed"], ".0f"), value)
        cells = "".join(f"<td>{_text(text)}</td>" for text in texts)
        place = row["column"], row["task"], row["setting"]
        made[place] = made.get(place, "") + (f'<tr class="chosen">{cells}</tr>' if chosen else f"<tr>{cells}</tr>")
    return made


def _text(text: str) -> str:
    return escape(one_line(text), quote=True)
