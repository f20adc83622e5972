"""Statistics of rows that distinguish two distributions of rows, and z scores that compare them.

A dataset is `(inputs, targets)`, each `[N, T]`. A statistic is one number per row. As rows are independent, the
difference of two means can be compared with its standard error.
"""

from itertools import accumulate, groupby

import numpy as np

from mixerlab.tasks.base import Task

# A correct generator exceeds this in 7 of a million comparisons; the tests make about 2,000, with fixed seeds.
MAX_Z = 4.5


def row_statistics(task: Task, inputs: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
    """Name -> `[N]`: the statistics common to all tasks, and those of this kind of task."""
    bins = min(task.vocab_size, 16)
    token_bin = inputs * bins // task.vocab_size
    statistics = {f"tokens {i}/{bins}": (token_bin == i).sum(axis=1) for i in range(bins)}
    statistics["scored positions"] = (targets >= 0).sum(axis=1)
    own = {"CR": _recall, "NR": _recall, "FR": _fuzzy, "M": _memorization, "C": _compression, "SC": _copying}
    return statistics | own[task.madlab_code](task, inputs)


def z_scores(statistics: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> dict[str, float]:
    """For each statistic, the difference of the two means in standard errors, with pooled variance."""
    assert statistics.keys() == others.keys()
    z = {}
    for name, a in statistics.items():
        b = others[name]
        error = np.sqrt(np.concatenate([a, b]).var() * (1 / len(a) + 1 / len(b)))
        z[name] = float((a.mean() - b.mean()) / error) if error else 0.0
    return z


def _recall(task, inputs):
    keys = inputs[:, ::2]
    values = inputs[:, 1::2]
    context, probe = keys[:, :-1], keys[:, -1:]
    is_pair = context < task.num_keys
    is_probe = context == probe
    return {
        "noise slots": (~is_pair).sum(axis=1),
        "repeated keys": is_pair.sum(axis=1) - _distinct(context, is_pair),
        "distinct keys": _distinct(context, is_pair),
        "shared values": _distinct(context, is_pair) - _distinct(values, is_pair),
        "probe showings": is_probe.sum(axis=1),
        "probe's first slot": is_probe.argmax(axis=1),
    }


def _fuzzy(task, inputs):
    """Parses the rows run by run in plain Python, independently of the checker's own parser."""
    rows = [_fuzzy_row(task, row) for row in inputs.tolist()]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _fuzzy_row(task, row):
    tokens = row[row.count(task.pad_token) :]
    runs = [tuple(run) for _, run in groupby(tokens, lambda token: token < task.num_keys)]
    starts = [0, *accumulate(map(len, runs))][::2]
    *context, probe = runs[::2]
    first = {key: slot for slot, key in reversed([*enumerate(context)])}
    new_values = [runs[2 * slot + 1] for slot in first.values()]
    statistics = {
        "pads": len(row) - len(tokens),
        "pairs": len(context) + 1,
        "distinct keys": len(first),
        "repeated keys": len(context) - len(first),
        "probe missing": probe not in first,
        "probe showings": context.count(probe),
        "probe's first place": starts[first.get(probe, 0)],
        "probe's key length": len(probe),
    }
    for name, motifs, longest in (("key", context, task.k_motif_size), ("value", new_values, task.v_motif_size)):
        lengths = [len(motif) for motif in motifs]
        statistics |= {f"{name} length {size}": lengths.count(size) for size in range(1, longest + 1)}
    return statistics


def _memorization(task, inputs):
    keys = inputs[:, ::2]
    return {"distinct keys": _distinct(keys, np.ones(keys.shape, dtype=bool))}


def _compression(task, inputs):
    return {
        "equal neighbours": (inputs[:, 1:] == inputs[:, :-1]).sum(axis=1),
        "rises": (inputs[:, 1:] > inputs[:, :-1]).sum(axis=1),
    }


def _copying(task, inputs):
    c = task.num_tokens_to_copy
    row, position = np.nonzero(inputs < task.blank_token)
    assert (np.bincount(row) == c).all()
    gaps = np.diff(position.reshape(-1, c), axis=1, prepend=-1) - 1
    return {
        "gap sizes, squared": (gaps**2).mean(axis=1),
        "gaps of 0": (gaps == 0).sum(axis=1),
        "largest gap": gaps.max(axis=1),
        "first gap": gaps[:, 0],
        "last gap": gaps[:, -1],
        "neighbouring gaps": (gaps[:, 1:] * gaps[:, :-1]).mean(axis=1),
    }


def _distinct(tokens: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """How many different tokens each row has among those counted."""
    ordered = np.sort(np.where(counted, tokens, -1), axis=1)
    is_new = (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1) + 1
    return is_new - (ordered[:, 0] == -1)
