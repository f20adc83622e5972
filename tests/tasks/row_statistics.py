"""Statistics of rows that distinguish two distributions of rows, and z scores that compare them.

A dataset is `(inputs, targets)`, each `[N, T]`. A statistic is one number per row. As rows are independent, the
difference of two means can be compared with its standard error.
"""

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
    """Parses the rows pair by pair in plain Python, independently of the checker's own parser."""
    rows = [_fuzzy_row(task, row) for row in inputs.tolist()]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _fuzzy_row(task, row):
    pads = row.count(task.pad_token)
    keys, values, starts = [], [], []
    for position, token in enumerate(row[pads:]):
        if token < task.num_keys:
            if len(values) == len(keys):
                keys.append([])
                starts.append(position)
            keys[-1].append(token)
        else:
            if len(values) < len(keys):
                values.append([])
            values[-1].append(token)
    *context, probe = [tuple(key) for key in keys]
    values = values[: len(context)]  # the probe's is cut short by the end of the inputs
    first = dict(zip(reversed(context), reversed(range(len(context))), strict=True))
    new_values = [values[slot] for slot in first.values()]
    shown = probe in first
    statistics = {
        "pads": pads,
        "pairs": len(keys),
        "distinct keys": len(first),
        "repeated keys": len(context) - len(first),
        "probe missing": not shown,
        "probe showings": context.count(probe),
        "probe's first place": starts[first[probe]] if shown else 0,
        "probe's key length": len(probe),
    }
    for size in range(1, task.k_motif_size + 1):
        statistics[f"key length {size}"] = sum(len(key) == size for key in context)
    for size in range(1, task.v_motif_size + 1):
        statistics[f"value length {size}"] = sum(len(value) == size for value in new_values)
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
