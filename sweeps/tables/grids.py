"""The learning rates that a cell should have: which of them it lacks, and which it has beyond the others of its row.

A cell has tried a rate if a run ended there, also by divergence. It lacks a rate

- that its own runs were to try: at which all failed, are unfinished, damaged or missing;
- that another cell of its row (the same task, setting and optimizer) has tried, if more than half of all cells with
  this optimizer have, or all others of its row, two at least. This stands in for what a deleted run would say, and does
  not count where all runs are known.

A rate that few cells have is one that they were given later, since their grids were to be wider (`sweeps.edges`). The
others do not lack it. A cell without a score lacks nothing but the score.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from mixerlab.records.best import ENDED

Rates = tuple[float, ...]
Cell = tuple[str, str, str]  # mixer, task, setting


def grids(
    groups: Mapping[Cell, Iterable[Mapping[str, Any]]], all_known: bool = False
) -> defaultdict[Cell, tuple[Rates, Rates]]:
    """The rates that each cell lacks, and those that it has and the others of its row do not lack, both ascending.

    Args:
        groups: the rows of `sweeps.collect.collect` by cell.
        all_known: no run is absent from them, so that a cell lacks only what its own runs were to try.
    """
    planned: dict[tuple[Cell, Any], set[float]] = {}  # by cell and optimizer
    tried: dict[tuple[Cell, Any], set[float]] = {}
    for cell, rows in groups.items():
        for row in rows:
            place = cell, row.get("optimizer")
            planned.setdefault(place, set()).add(row["lr"])
            if row["status"] in ENDED:
                tried.setdefault(place, set()).add(row["lr"])
    of_row: dict[tuple, list[Cell]] = {}
    cells_with: dict[Any, int] = Counter(optimizer for _, optimizer in tried)
    in_all = Counter((optimizer, lr) for (_, optimizer), rates in tried.items() for lr in rates)
    for cell, optimizer in tried:
        of_row.setdefault((cell[1:], optimizer), []).append(cell)
    lacking, added = defaultdict[Cell, set[float]](set), defaultdict[Cell, set[float]](set)
    for (_, optimizer), cells in of_row.items():
        in_row = Counter(lr for cell in cells for lr in tried[cell, optimizer])
        usual = {
            lr
            for lr, count in in_row.items()
            if 2 * in_all[optimizer, lr] > cells_with[optimizer] or (count == len(cells) - 1 and count > 1)
        }
        for cell in cells:
            own = planned[cell, optimizer] | (set() if all_known else usual)
            lacking[cell] |= own - tried[cell, optimizer]
            alone = {lr for lr in tried[cell, optimizer] if 2 * in_row[lr] <= len(cells)}
            added[cell] |= (alone - usual) if len(cells) > 1 else set()
    made = defaultdict[Cell, tuple[Rates, Rates]](lambda: ((), ()))
    made |= {cell: (tuple(sorted(lacking[cell])), tuple(sorted(added[cell]))) for cell in {*lacking, *added}}
    return made
