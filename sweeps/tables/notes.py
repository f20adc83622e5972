"""What a reader of the tables must know of the runs behind them."""

from collections.abc import Iterable

import pandas as pd

from mixerlab.sweeps.tables.collect import CLASSED
from mixerlab.sweeps.tables.columns import keys_of, labels
from mixerlab.sweeps.tables.swept import NAMES, hidden_keys, values_of

# Beside the keys of model, optimizer and schedule: what mixers should have in common to be compared. The last two are
# of the machine, from the provenance, since a config may leave them open.
ALIKE = ("optimizer", "schedule", "weight_decay", "epochs", "batch_size", "precision", "device")


def notes_of(frame: pd.DataFrame) -> list[str]:
    """Runs that cannot be read, keys that no column shows, and runs that differ in more than the tables show.

    Args:
        frame: as `spread_out` gives it.
    """
    known = frame[frame["mixer"].notna()]
    columns = known["column"].drop_duplicates()
    names = labels(columns)
    notes = [f"unreadable: {error}" for error in frame.loc[frame["status"] == "unreadable", "error"].dropna()]
    for column, keys in hidden_keys(frame).items():
        differ = "; ".join(f"{key} ({', '.join(values)})" for key, values in keys.items())
        notes.append(
            f"{names[column]}: its runs differ in {differ}, of which an entry is the best: --by {' '.join(keys)} makes"
            " columns of them."
        )
    return [*notes, *_shared_names(known), *_changed_code(known), *_unlike_data(known), *_unlike_runs(known, columns)]


def _shared_names(frame: pd.DataFrame) -> list[str]:
    return [
        f"{part} {name}: runs of several classes ({', '.join(sorted(classes.unique()))}) share this name."
        for part in CLASSED
        if f"{part}._target_" in frame
        for name, classes in frame.dropna(subset=f"{part}._target_").groupby(part)[f"{part}._target_"]
        if classes.nunique() > 1
    ]


def _changed_code(frame: pd.DataFrame) -> list[str]:
    """The parts whose code differs between runs; the optimizer and the schedule, which belong to training, may."""
    notes = []
    for part, by in (("mixer", ["mixer"]), ("task", ["task"]), ("training", ["optimizer", "schedule"])):
        by += [f"{part}._target_"] if f"{part}._target_" in frame else []
        if (version := f"code_version.{part}") in frame:
            versions = frame.groupby(by, dropna=False)[version].nunique()
            changed = sorted({name[0] if isinstance(name, tuple) else name for name in versions[versions > 1].index})
            notes += [f"{part} {name}: its code changed between these runs." for name in changed if part != "training"]
            notes += ["The code of training changed between these runs."] if changed and part == "training" else []
    return notes


def _unlike_data(frame: pd.DataFrame) -> list[str]:
    """Parameters of a task that differ between runs of one row."""
    notes = []
    for name in (name for name in frame if name.startswith("task.") and frame[name].nunique() > 1):
        values = frame[name].dropna().map(str).groupby([frame["task"], frame["setting"]]).unique()
        notes += [
            f"{task} {setting}: runs with different {name} share this name ({', '.join(sorted(several))})."
            for (task, setting), several in values.items()
            if len(several) > 1
        ]
    return notes


def _unlike_runs(frame: pd.DataFrame, columns: Iterable) -> list[str]:
    """Hyperparameters and machines that differ between mixers, and that no column shows."""
    finished, shown, differ = (
        frame[frame["status"] == "finished"],
        [NAMES.get(key, key) for key in keys_of(columns)],
        [],
    )
    for name in finished:
        group, dot, _ = name.partition(".")
        if name in shown or not (name in ALIKE or (dot and group in ("model", "optimizer", "schedule"))):
            continue
        if dot and group in finished and finished[group].nunique() > 1:
            continue  # another optimizer or schedule: its own keys say no more
        if len(set(finished[name].tolist())) < 2:
            continue
        values = values_of(finished, name)
        of_mixer = values.groupby(finished["mixer"]).agg(lambda own: ", ".join(sorted(set(own))))
        in_row = values.groupby([finished["task"], finished["setting"]]).nunique()
        if of_mixer.nunique() > 1:
            differ.append(f"{name} ({'; '.join(f'{mixer} {own}' for mixer, own in of_mixer.items())})")
        elif name in ("precision", "device") and in_row.max() > 1:
            differ.append(f"{name} ({of_mixer.iloc[0]})")
    return [f"The mixers differ in more than the mixer: {', '.join(differ)}."] if differ else []
