"""Main effects of the screen, by mixer and cell, from its rows.

    python results/screen/analyse.py results/screen/rows.csv OUT_DIR

A response is the official test accuracy at the best of the three learning rates (the highest mean over seeds; of
equal ones the highest rate), the mean over the seeds. A main effect is the mean response at a factor's upper level less
that at its lower one, over the recipes that have a record. Its standard error comes from the seeds: pooled over the
recipes of that mixer and cell, one variance each at the chosen rate, so it leaves out what the choice of the rate adds.
"""

import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

FACTORS = list("ABCDEFGH")
KEYS = ["mixer", "task", "setting"]


def responses(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each (mixer, cell, recipe): `accuracy` (mean over seeds at the best rate), `lr`, `n`, `variance`."""
    rows = rows[rows["status"] == "finished"]
    by_rate = rows.groupby([*KEYS, "recipe", *FACTORS, "lr"])["official_accuracy"].agg(["mean", "count", "var"])
    best = by_rate.reset_index().sort_values(["mean", "lr"]).groupby([*KEYS, "recipe"]).tail(1)
    return best.rename(columns={"mean": "accuracy", "count": "n", "var": "variance"}).sort_values([*KEYS, "recipe"])


def effects(table: pd.DataFrame) -> pd.DataFrame:
    """A row for each (mixer, cell): `effect_X` and `mean`, `recipes`, and `se` of an effect by the seeds."""
    made = []
    for key, group in table.groupby(KEYS, sort=False):
        row = dict(zip(KEYS, key, strict=True)) | {"recipes": len(group), "mean": group["accuracy"].mean()}
        for factor in FACTORS:
            high, low = (group.loc[group[factor] == level, "accuracy"] for level in (1, -1))
            row[f"effect_{factor}"] = high.mean() - low.mean() if len(high) and len(low) else np.nan
        within = group["variance"].mean() / group["n"].mean()  # of a response
        row["se"] = (4 * within / len(group)) ** 0.5
        row["range"] = group["accuracy"].max() - group["accuracy"].min()
        made.append(row)
    return pd.DataFrame(made)


def pairs(table: pd.DataFrame) -> pd.DataFrame:
    """The seven contrasts of two factors, each four aliased pairs, by (mixer, cell)."""
    made = []
    for key, group in table.groupby(KEYS, sort=False):
        if len(group) < 16:
            continue
        row = dict(zip(KEYS, key, strict=True))
        seen = {}
        for one, other in combinations(FACTORS, 2):
            sign = (group[one] * group[other]).to_numpy()
            seen.setdefault(tuple(sign * sign[0]), []).append((one + other, sign))
        for named in seen.values():
            label = "=".join(("" if (sign == named[0][1]).all() else "-") + name for name, sign in named)
            row[label] = 2 * (named[0][1] * group["accuracy"]).mean()
        made.append(row)
    return pd.DataFrame(made)


def main() -> None:
    rows, out = pd.read_csv(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    table = responses(rows)
    table.round(4).to_csv(out / "responses.csv", index=False)
    found = effects(table)
    found.round(4).to_csv(out / "effects.csv", index=False)
    pairs(table).round(4).to_csv(out / "pairs.csv", index=False)
    print(found.round(3).to_string(index=False))


if __name__ == "__main__":
    main()
