"""What a record says: its columns, and the rows of a config.

`record.json` holds the fields of a `Record`, and `sha256`: digests of what it says and of `metrics.csv`. Everything but
`provenance` is the same, bit for bit, when the same config runs again on a CPU in as many threads and with the same
instruction set. Accuracies are in [0, 1], losses in nats, and the first epoch is 0. A number that does not exist or is
not finite is null.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from mixerlab.records.identity import DATA_DIGEST, DATA_PATHS, REPLICATED, hyperparameters, replicas_of, run_id

# The columns that say which replica a row is, with their types.
LABELS = {
    "run_id": str,
    "mixer": str,
    "task": str,
    "setting": str,
    "replica": int,
    "lr": float,
    "weight_decay": float,
    "seed": int,
    "optimizer": str,
    "schedule": str,
    "epochs": int,
    "batch_size": int,
}
CHOICES = ("mixer", "task", "optimizer", "schedule")  # groups of a config of which a sweep may choose several entries
GROUPS = ("mixer", "task", "model", "optimizer", "schedule", "trainer")  # of a config, whose keys are hyperparameters


@dataclass(frozen=True)
class Score:
    """What a run is judged by: a task says it (`tasks.base.Task.score`), and all that compares scores follows it.

    `name` becomes part of its columns: `bits_per_byte` that of `test_bits_per_byte`. It has only `a-z`, `0-9` and `_`.
    """

    name: str = "accuracy"
    higher_is_better: bool = True
    axis: str = field(default="epoch", init=False)  # part of the digest of every record

    @property
    def label(self) -> str:
        """What it is called in tables and figures."""
        return self.name.replace("_", " ")

    @property
    def is_accuracy(self) -> bool:
        """Whether it lies in [0, 1], where 1 is perfect."""
        return self.name.endswith("accuracy")

    @property
    def sign(self) -> int:
        """1 or -1: the higher a value is times this, the better."""
        return 1 if self.higher_is_better else -1

    @property
    def worst(self) -> float:
        """What a run has that diverged."""
        return 0.0 if self.is_accuracy else -self.sign * math.inf


ACCURACY = Score()
MEASURED = ("loss", "perplexity", "accuracy", "token_accuracy")  # of a split each epoch, whatever the score is
_COUNTS = ("num_params", "state_size", "steps")
_LOSSES = ("official_loss", "clean_loss", "clean_val_loss", "train_loss", "val_loss", "test_loss")


def result_columns(score: Score = ACCURACY) -> tuple[str, ...]:
    """The columns of rows that say how training went.

    `official_*`: where the perplexity on test is lowest or, if the score is no accuracy, that is best. `clean_*`: where
    it is on validation. Without a prefix: at the end of training. `steps_to_90`, of accuracies: the steps made by the
    end of the first epoch with at least 0.9 on test, or null. `chance`: the score on test of a uniform guess
    (`Task.chance`), or null.
    """
    scores = [f"{place}_{score.name}" for place in ("official", "clean", "clean_val", "val", "test")]
    scores += ["official_token_accuracy", "clean_token_accuracy"]
    solved = ["steps_to_90"] if score.is_accuracy else []
    return ("status", "error", *_COUNTS, "official_epoch", "clean_epoch", *scores, *_LOSSES, *solved, "chance")


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is written of a run when it has ended.

    `status` is `finished` or `failed`; that of a row may be `diverged` too. `rows` has a dict for each replica:
    `LABELS`, `hparams` (all other keys of the config, dotted) and `result_columns`. `provenance` is what may differ
    when the same run is repeated: times, device, versions, commit.
    """

    run_id: str
    status: str
    rows: list[dict[str, Any]]
    error: str | None = None
    score: Score = ACCURACY
    provenance: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The record that `record.json` holds; raises whatever is wrong with it."""
        fields = dict(content)
        digest = fields.pop("sha256")["rows"]
        score = Score(fields["score"]["name"], fields["score"]["higher_is_better"])
        record = cls(**fields | {"score": score})
        if rows_digest(record) != digest:
            raise ValueError("its rows are not those that were written")
        columns = {*LABELS, "hparams", *result_columns(record.score)}
        if differing := sorted(set().union(*(row.keys() ^ columns for row in record.rows))):
            raise ValueError(f"missing or unknown columns {', '.join(differing)}")  # as of another version
        return record


def labels_of_replicas(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The part of each replica's row that the config knows: `LABELS` and `hparams`."""
    taken = {"optimizer.weight_decay", "trainer.epochs", "trainer.batch_size", *REPLICATED}
    hparams = hyperparameters({group: config[group] for group in GROUPS if group in config})
    if DATA_DIGEST in hparams:  # it says more than where the data lay
        taken |= {*DATA_PATHS}
    hparams = {key: value for key, value in hparams.items() if key not in taken and not key.endswith(".name")}
    shared = {
        "run_id": run_id(config),
        "mixer": config["mixer"]["name"],
        "task": config["task"]["name"],
        "setting": config["task"]["setting"],
        "weight_decay": float(config["optimizer"].get("weight_decay") or 0.0),  # an optimizer may have none
        "optimizer": config["optimizer"]["name"],
        "schedule": config["schedule"]["name"],
        "epochs": config["trainer"]["epochs"],
        "batch_size": config["trainer"]["batch_size"],
    }
    return [
        shared | {"replica": replica, "lr": lr, "seed": seed, "hparams": dict(hparams)}
        for replica, (lr, seed) in enumerate(replicas_of(config))
    ]


def failed_record(
    config: Mapping[str, Any], error: str, provenance: Mapping[str, Any], score: Score = ACCURACY
) -> Record:
    """The record of a run that raised: one failed row for each learning rate and seed, without results."""
    nothing = dict.fromkeys(result_columns(score)) | {"status": "failed", "error": error}
    rows = [labels | nothing for labels in labels_of_replicas(config)]
    return Record(
        run_id=run_id(config), status="failed", error=error, rows=rows, score=score, provenance=dict(provenance)
    )


def rows_digest(record: Record) -> str:
    """SHA-256 of what a record says besides its provenance."""
    said = [record.run_id, record.status, record.error, record.rows, asdict(record.score)]
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def changed_code(record: Record, code: Mapping[str, str]) -> list[str]:
    """The parts of a run (`mixer`, `task`, `training`, `start_from`) that differ from those that made `record`.

    Parts for which the record has no version count as unchanged.
    """
    made_by = record.provenance.get("code_version", {})
    return [part for part, version in code.items() if made_by.get(part, version) != version]


def state_of(record: Record | None, code: Mapping[str, str]) -> str:
    """What a dry run says of a run with this record."""
    if record is None:
        return "to run"
    return "finished, code changed" if changed_code(record, code) else "finished"
