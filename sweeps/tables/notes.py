"""What a reader of the tables must know of the runs behind them."""

import pandas as pd

from mixerlab.records.best import ENDED
from mixerlab.records.names import natural
from mixerlab.sweeps.tables.columns import columns_in_order, keys_of, labels
from mixerlab.sweeps.tables.swept import NAMES, values_of

_TRIED = "learning rates tried"

# Beside the keys of model, optimizer and schedule: what mixers should have in common to be compared. Those of the
# machine are from the provenance, since a config may leave them open.
_ALIKE = (
    *("optimizer", "schedule", "weight_decay", "epochs", "batch_size"),
    *("trainer.eval_every", "trainer.stop_above", "trainer.stop_when_perfect"),  # checkpoints to choose from
    _TRIED,
)
_MACHINE = ("precision", "device", "threads", "instruction_set")


def notes_of(frame: pd.DataFrame) -> list[str]:
    """Runs that cannot be read, see the future, or differ in more than the tables show; `frame`: of `spread_out`."""
    known = frame[frame["mixer"].notna()]
    unreadable = [f"unreadable: {error}" for error in frame.loc[frame["status"] == "unreadable", "error"].dropna()]
    return [*unreadable, *_see_the_future(known), *_changed_code(known), *_unlike_runs(known)]


def _see_the_future(frame: pd.DataFrame) -> list[str]:
    """The columns whose runs found it, also where `model.may_see_future` is the same for all mixers."""
    if "sees_future" not in frame:
        return []
    columns = columns_in_order(frame.loc[values_of(frame, "sees_future") == "true", "column"])
    told = "outputs depend on later tokens, which are those to predict"
    return [f"It sees the future ({told}): {'; '.join(labels(columns).values())}."] if columns else []


def _changed_code(frame: pd.DataFrame) -> list[str]:
    """The parts whose code differs between runs; the optimizer and the schedule, which belong to training, may."""
    told = []
    for part, scope in (("mixer", ["mixer"]), ("task", ["task"]), ("training", ["optimizer", "schedule"])):
        groups = tuple(f"{group}." for group in scope)
        scope += [name for name in frame if name.startswith(groups) and name.endswith("._target_")]
        if (version := f"code_version.{part}") in frame:
            changed = frame[frame.groupby(scope, dropna=False)[version].transform("nunique") > 1]
            if len(changed):
                told.append(part if part == "training" else f"{part} {', '.join(changed[scope[0]].unique())}")
    return [f"The code changed between these runs: {'; '.join(told)}."] if told else []


def _unlike_runs(frame: pd.DataFrame) -> list[str]:
    """Hyperparameters and machines that differ between mixers on a task, and that no column shows."""
    shown = [NAMES.get(key, key) for key in keys_of(frame["column"].unique())]
    ended = frame[frame["status"].isin(ENDED)]
    tried = ended.groupby(["column", "task", "setting"], sort=False)["lr"].transform("nunique")
    frame, differ = ended.assign(**{_TRIED: tried})[ended["status"] == "finished"], []
    for name in frame:
        group, dot, _ = name.partition(".")
        if not (name in (*_ALIKE, *_MACHINE) or (dot and group in ("model", "optimizer", "schedule"))):
            continue
        # Of another optimizer or schedule, its own keys say no more.
        if name in shown or (dot and group in frame and frame[group].nunique() > 1) or frame[name].nunique() == 0:
            continue
        values = values_of(frame, name)
        # A column is the best of the rates that were tried for it, and not for others of its mixer.
        whose = frame["column"].map(labels(frame["column"].unique())) if name == _TRIED else frame["mixer"]
        by_task = values.groupby([frame["task"], whose]).agg(_listed)
        if by_task.groupby(level="task").nunique().max() > 1:  # one task may differ from another, as text from MAD's
            by_mixer = values.groupby(whose).agg(_ends if name == _TRIED else _listed)
            quoted = by_mixer.index.to_series().replace("(.*, .*)", r'"\1"', regex=True)  # of a column: one of a list
            mixers = quoted.groupby(by_mixer, sort=False).agg(", ".join)
            told = "; ".join(f"{own}: {names}" for own, names in mixers.items())
            differ.append(f"{name} ({told if len(mixers) > 1 else mixers.index[0]})")
        elif name in _MACHINE and values.groupby([frame["task"], frame["setting"]]).nunique().max() > 1:
            differ.append(f"{name} ({_listed(values)})")
    return [f"The mixers differ in more than the mixer: {', '.join(differ)}."] if differ else []


def _listed(values: pd.Series) -> str:
    return ", ".join(sorted(set(values), key=natural))


def _ends(values: pd.Series) -> str:
    ordered = sorted(values, key=natural)
    return " to ".join(dict.fromkeys((ordered[0], ordered[-1])))
