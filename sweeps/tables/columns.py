"""The columns of tables and figures, and what tables hand on to figures.

A column is a mixer with the values of the keys that were swept. It is a `Column` wherever it is stored, and a text only
where it is written (`labels`); no text is taken apart again.

What is handed on:

- A *frame* (`collect`, then `spread_out`) has one row per replica: `column` (`Column`; None for a run that cannot be
  read), `mixer`, `task`, `setting_name`, `setting` (with the swept keys of the task behind its name: `baseline,
  data_seed=1`), `lr`, `seed`, `status`, `config` (a hash of all hyperparameters but learning rate and seed), `score`
  (the name of the score, such as `accuracy`), `higher_is_better`, the scores (`official_accuracy`, `clean_accuracy`,
  ...), every hyperparameter and entry of the provenance under its dotted name (`task.seq_len`; lists are JSON).
- *Cells* (`best_per_cell`) have one row per (column, task, setting), also where nothing ran: `column`, `mixer`, `task`,
  `setting_name`, `setting`, `score` (`Score`), `entry` (`tables.Entry`), its `mean` over the `n` seeds of the best
  learning rate (NaN if `n` is 0), `seeds` (of the cell at any rate), `lr`, `config`, `lacking` (tuple: rates of its
  runs at which none has ended), `unscored` (tuple: the other rates at which a replica has no score), `num_params`,
  `state_size`, `replicas` (list of (run_id, replica)), `by_code` (tuple: the seeds of each version of the code),
  `configs` (how many competed), `chance` (NaN: not known), and over all replicas `solved`, `known`, `steps_to_90`.
- A `tables.Table` has an `Entry` for each row and column, and notes.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from mixerlab.records.names import MIXERS, natural, rank


@dataclass(frozen=True)
class Column:
    """A mixer, and the swept keys by which its runs are told apart; in the order of all tables and figures.

    `values` are (key, value) of those that this mixer has, such as `("model.d_model", "64")`; as YAML writes them,
    `null` included.
    """

    mixer: str
    values: tuple[tuple[str, str], ...] = ()

    def __lt__(self, other: "Column") -> bool:
        return self._rank() < other._rank()

    def _rank(self) -> tuple:
        return rank(self.mixer, MIXERS), [(key, natural(value)) for key, value in self.values]

    def without(self, keys: Collection[str]) -> "Column":
        """The column without these keys."""
        return replace(self, values=tuple(pair for pair in self.values if pair[0] not in keys))


def keys_of(columns: Iterable[Column]) -> list[str]:
    """The keys by which any of the columns is told."""
    return list(dict.fromkeys(key for column in columns for key, _ in column.values))


def columns_in_order(columns: Iterable[Column]) -> list[Column]:
    """Distinct columns by mixer, then by the values of their keys."""
    return sorted(set(columns))


def labels(columns: Iterable[Column]) -> dict[Column, str]:
    """What each of the columns is called beside the others: `attn, d_model=64`."""
    return {column: ", ".join(parts) for column, parts in label_parts(columns).items()}


def label_parts(columns: Iterable[Column]) -> dict[Column, list[str]]:
    """The parts of each label: `attn` and `d_model=64`.

    An option that is off (null or false) in most of the columns is named where it is on.
    """
    columns = list(columns)
    short = short_names(keys_of(columns))
    counts = Counter(pair for column in columns for pair in column.values)
    by_key = Counter(key for column in columns for key, _ in column.values)
    mostly_off = {
        (key, value) for (key, value), n in counts.items() if value in ("null", "false") and 2 * n > by_key[key]
    }
    return {
        column: [column.mixer, *(f"{short[k]}={value}" for k, value in column.values if (k, value) not in mostly_off)]
        for column in columns
    }


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """What each key is called in a label: `d_model`; `layer 0 num_heads`; in full if two would be called the same."""
    short = {key: _short(key) for key in keys}
    counts = Counter(short.values())
    return {key: name if counts[name] == 1 else key for key, name in short.items()}


def _short(key: str) -> str:
    """Its last part, or of a name the group (`optimizer.name`), behind the layer of a hybrid that it belongs to.

    The class of a part without a name is called as the part is: `all` of `optimizer.all._target_`.
    """
    parts = key.removesuffix(".name").removesuffix("_sha256").split(".")
    parts = parts[:-1] if parts[-1] == "_target_" and len(parts) > 2 else parts
    layer = f"layer {parts[2]} " if parts[:2] == ["mixer", "options"] and len(parts) > 3 else ""
    return layer + parts[-1]


def shared(columns: Iterable[Column]) -> Mapping[str, str]:
    """The keys and values that all of several columns have in common."""
    pairs = [dict(column.values) for column in columns]
    if len(pairs) < 2:
        return {}
    return {key: value for key, value in pairs[0].items() if all(other.get(key) == value for other in pairs)}
