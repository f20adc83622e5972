"""What the loggers of a run get beside its series: hyperparameters when it begins, results when it ends.

A logger is any of Lightning's. Weights & Biases and TensorBoard also get the table of results.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import fmean
from typing import Any

from mixerlab.records.best import ended_at_best_rate, score_of
from mixerlab.records.errors import type_and_message, users_code
from mixerlab.records.schema import Record

log = logging.getLogger(__name__)

Loggers = Mapping[str, Any]  # Lightning's loggers by config key; which methods each has depends on its class


@contextmanager
def started(loggers: Loggers, hyperparameters: Mapping[str, Any]) -> Iterator[None]:
    """Gives the hyperparameters to the loggers, and ends at the end of the block what they have opened."""
    succeeded = False
    try:
        for name, logger in loggers.items():
            try:
                with users_code():
                    logger.log_hyperparams(dict(hyperparameters))
            except Exception as error:  # of any service's client
                raise ValueError(f"logger={name} does not start: {type_and_message(error)}") from error
        yield
        succeeded = True
    finally:
        for logger in loggers.values():
            # A process trains one run after another, and W&B would take the next one for the same.
            if _is(logger, "WandbLogger") and logger._experiment is not None:
                logger.experiment.finish(exit_code=0 if succeeded else 1)


def log_results(loggers: Loggers, hyperparameters: Mapping[str, Any], record: Record) -> None:
    """Gives the rows of a record to the loggers that can show a table, and the best learning rate's as a summary.

    In the summary a diverged replica counts with the worst score, such as an accuracy of 0, and is one of `best/seeds`
    and of `best/diverged`. The record is written by now: a logger that fails costs a warning.
    """
    name = record.score.name
    scores = (f"official_{name}", f"clean_{name}", f"clean_val_{name}", "clean_token_accuracy")
    columns = ["lr", "seed", "status", *scores, "steps"]
    table = [[row[column] for column in columns] for row in record.rows]
    best: dict[str, float] = {}
    if chosen := ended_at_best_rate(record.rows, record.score):
        best = {"best/lr": chosen[0]["lr"], "best/seeds": len(chosen)}
        best["best/diverged"] = sum(row["status"] == "diverged" for row in chosen)
        for column in (f"clean_val_{name}", f"clean_{name}"):
            best[f"best/{column}"] = fmean(score_of(row, column, record.score) for row in chosen)
    for name, logger in loggers.items():
        try:
            if _is(logger, "WandbLogger"):
                logger.log_table("results", columns=columns, data=table)
                logger.experiment.summary.update(best)
            elif _is(logger, "TensorBoardLogger"):
                lines = [columns, ["---"] * len(columns), *table]
                logger.experiment.add_text("results", "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines))
                # With numbers this time: the HParams page lists no run without.
                logger.log_hyperparams(dict(hyperparameters), best)
                logger.finalize("success")
        except Exception as error:
            log.warning("logger=%s did not take the results (%s); the record has them", name, type_and_message(error))


def _is(logger: Any, name: str) -> bool:
    """Whether it is Lightning's logger of this class, or a subclass; Lightning is not imported for it."""
    return any(known.__name__ == name for known in type(logger).__mro__)
