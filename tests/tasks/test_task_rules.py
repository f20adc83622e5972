"""The rule checker accepts everything that we generate, and names each broken rule with its row."""

import numpy as np
import pytest
from golden_data import make_task

from mixerlab.tasks.base import IGNORE_INDEX, TaskRuleError

_ = IGNORE_INDEX

# Small tasks whose valid rows are short enough to write down; these are the rows of the tasks' docstrings.
ICR = make_task("ncr", vocab_size=12, noise_vocab_size=4, seq_len=10)
ICR_INPUTS = [1, 6, 9, 11, 3, 4, 1, 6, 3]
ICR_TRAIN = [6, 9, 11, 3, 4, 1, 6, 3, 4]
ICR_TEST = [_, _, _, _, _, _, 6, _, 4]

FCR = make_task("fcr", vocab_size=10, seq_len=16, k_motif_size=2, v_motif_size=2)
FCR_INPUTS = [9, 9, 9, 1, 3, 5, 4, 0, 2, 7, 1, 3, 5, 4, 0, 2]
FCR_TRAIN = [9, 9, 1, 3, 5, 4, 0, 2, 7, 1, 3, 5, 4, 0, 2, 7]
FCR_TEST = [_, _, _, _, _, _, _, _, _, _, _, 5, 4, _, _, 7]
# With the probe (0 2) -> 7 context pairs start below 16 - 3 - 4 = 9: none at 7 is too few, one at 9 too many.
FCR_ENDS_EARLY = [9, 9, 9, 9, 9, 9, 9, 1, 3, 5, 4, 0, 2, 7, 0, 2]
FCR_ENDS_LATE = [9, 9, 0, 2, 7, 1, 3, 5, 0, 1, 4, 2, 3, 6, 0, 2]
FCR_ENDS = [_] * 15 + [7]

MEM = make_task("mem", vocab_size=9, seq_len=6)
MEM_INPUTS = [2, 8, 0, 8, 2, 8]
MEM_TARGETS = [_, MEM.value_of[2], _, MEM.value_of[0], _, MEM.value_of[2]]

CMP = make_task("cmp", vocab_size=9, seq_len=6)
CMP_ROW = [3, 0, 7, 3, 5, 8]

SC = make_task("sc", vocab_size=8, num_tokens_to_copy=2, seq_len=8)
SC_INPUTS = [6, 3, 6, 6, 5, 7, 6, 6]
SC_TARGETS = [_, _, _, _, _, _, 3, 5]

MQAR = make_task("mqar", vocab_size=12, num_kv_pairs=2, seq_len=16, random_non_queries=False)
MQAR_INPUTS = [2, 8, 4, 7, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 2, 0]
MQAR_TARGETS = [_, _, _, _, _, _, _, _, 7, _, _, _, _, _, 8, _]
FILLED = make_task("mqar", vocab_size=12, num_kv_pairs=2, seq_len=16, random_non_queries=True)
# Filler may repeat a key (4 at position 6) or a value; only scored positions ask.
FILLED_INPUTS = [2, 8, 4, 7, 11, 0, 4, 8, 4, 3, 0, 9, 5, 2, 2, 7]

S3 = make_task("state_tracking", group="S3", vocab_size=6, seq_len=2)

VALID = [
    (ICR, "train", ICR_INPUTS, ICR_TRAIN),
    (ICR, "test", ICR_INPUTS, ICR_TEST),
    (FCR, "train", FCR_INPUTS, FCR_TRAIN),
    (FCR, "test", FCR_INPUTS, FCR_TEST),
    (MEM, "train", MEM_INPUTS, MEM_TARGETS),
    (CMP, "train", CMP_ROW, CMP_ROW),
    (SC, "train", SC_INPUTS, SC_TARGETS),
    (MQAR, "test", MQAR_INPUTS, MQAR_TARGETS),
    (FILLED, "test", MQAR_INPUTS, MQAR_TARGETS),
    (FILLED, "test", FILLED_INPUTS, MQAR_TARGETS),
    (S3, "test", [3, 1], [3, 2]),
]


@pytest.mark.parametrize(("task", "split", "inputs", "targets"), VALID)
def test_a_row_of_the_docstring_is_valid(task, split, inputs, targets):
    task.check(np.array([inputs]), np.array([targets]), split)


def changed(row, **tokens):
    """The row with `p3=7`: token 7 at position 3."""
    row = list(row)
    for position, token in tokens.items():
        row[int(position[1:])] = token
    return row


BROKEN = [
    # any task
    (ICR, "test", changed(ICR_INPUTS, p0=12), ICR_TEST, "inputs", "position 0: found 12, must be in 0..11"),
    (ICR, "test", ICR_INPUTS, changed(ICR_TEST, p2=-1), "targets", "position 2: found -1, must be in 0..11 .* or -100"),
    # recall
    (ICR, "test", changed(ICR_INPUTS, p4=7), ICR_TEST, "inputs", "position 4: even positions hold a key"),
    (ICR, "test", changed(ICR_INPUTS, p1=2), ICR_TEST, "inputs", "position 1: a key is followed by a value"),
    (ICR, "test", changed(ICR_INPUTS, p8=9), ICR_TEST, "inputs", "last position asks for a key, never noise"),
    (ICR, "test", changed(ICR_INPUTS, p8=0), ICR_TEST, "inputs", "asked for at the end was shown before"),
    (ICR, "test", changed(ICR_INPUTS, p7=5), ICR_TEST, "inputs", "position 7: a key keeps its first value"),
    (ICR, "test", ICR_INPUTS, changed(ICR_TEST, p8=5), "targets", "position 8: found 5, the inputs give 4"),
    (ICR, "train", ICR_INPUTS, changed(ICR_TRAIN, p1=8), "targets", "position 1: .*the next token"),
    (ICR, "train", ICR_INPUTS, ICR_TEST, "targets", "position 0: found -100"),
    # fuzzy recall
    (FCR, "test", changed(FCR_INPUTS, p9=9), FCR_TEST, "inputs", "position 9: pads .* only on the left"),
    (FCR, "test", changed(FCR_INPUTS, p2=5), FCR_TEST, "inputs", "a key follows the pads"),
    (FCR, "test", changed(FCR_INPUTS, p2=0), FCR_TEST, "inputs", "position 4: a key has at most k_motif_size=2"),
    (FCR, "test", changed(FCR_INPUTS, p7=5), FCR_TEST, "inputs", "position 7: a value has at most v_motif_size=2"),
    (FCR, "test", changed(FCR_INPUTS, p4=1), FCR_TEST, "inputs", "position 4: the tokens of a motif are distinct"),
    (FCR, "test", changed(FCR_INPUTS, p12=6), FCR_TEST, "inputs", "position 10: a key keeps its first value"),
    (FCR, "test", FCR_ENDS_EARLY, FCR_ENDS, "inputs", "context pairs continue while"),
    (FCR, "test", FCR_ENDS_LATE, FCR_ENDS, "inputs", "no context pair starts too late"),
    (FCR, "test", FCR_INPUTS, changed(FCR_TEST, p15=2), "targets", "position 15: the last target ends the probe"),
    (FCR, "test", FCR_INPUTS, changed(FCR_TEST, p11=_), "targets", "position 11: found -100, the inputs give 5"),
    # memorization
    (MEM, "train", changed(MEM_INPUTS, p2=5), MEM_TARGETS, "inputs", "position 2: even positions hold a key"),
    (MEM, "train", changed(MEM_INPUTS, p3=1), MEM_TARGETS, "inputs", "position 3: .*insert token 8"),
    (MEM, "train", changed(MEM_INPUTS, p0=1), MEM_TARGETS, "targets", "position 1: .*map_seed=12345"),
    # compression
    (CMP, "train", changed(CMP_ROW, p5=1), CMP_ROW, "inputs", "the last position holds the compress token 8"),
    (CMP, "train", changed(CMP_ROW, p2=8), CMP_ROW, "inputs", "position 2: .*only at the last position"),
    (CMP, "train", CMP_ROW, changed(CMP_ROW, p4=1), "targets", "position 4: found 1, the inputs give 5"),
    # selective copying
    (SC, "train", changed(SC_INPUTS, p5=6), SC_TARGETS, "inputs", "position 5 holds the copy token 7"),
    (SC, "train", changed(SC_INPUTS, p0=7), SC_TARGETS, "inputs", "position 0: the copy token 7 appears only at"),
    (SC, "train", changed(SC_INPUTS, p7=1), SC_TARGETS, "inputs", "position 7: blanks .* follow the copy token"),
    (SC, "train", changed(SC_INPUTS, p0=1), SC_TARGETS, "inputs", "exactly 2 data tokens"),
    (SC, "train", changed(SC_INPUTS, p3=5, p4=6), SC_TARGETS, "inputs", "last data token stands at position 4"),
    (SC, "train", SC_INPUTS, changed(SC_TARGETS, p7=3), "targets", "position 7: found 3, the inputs give 5"),
    # multi-query recall
    (MQAR, "test", changed(MQAR_INPUTS, p0=0), MQAR_TARGETS, "inputs", "position 0: a pair begins with a key"),
    (MQAR, "test", changed(MQAR_INPUTS, p3=5), MQAR_TARGETS, "inputs", "position 3: a pair ends with a value"),
    (MQAR, "test", changed(MQAR_INPUTS, p2=2), MQAR_TARGETS, "inputs", "position 2: the keys of a row are distinct"),
    (MQAR, "test", changed(MQAR_INPUTS, p3=8), MQAR_TARGETS, "inputs", "position 3: the values of a row are distinct"),
    (MQAR, "test", MQAR_INPUTS, changed(MQAR_TARGETS, p9=7), "targets", "position 9: only the first token of a slot"),
    (MQAR, "test", MQAR_INPUTS, changed(MQAR_TARGETS, p8=_), "targets", "2 positions are scored"),
    (MQAR, "test", changed(MQAR_INPUTS, p8=3), MQAR_TARGETS, "inputs", "position 8: .* holds the key of a pair"),
    (MQAR, "test", changed(MQAR_INPUTS, p8=2), MQAR_TARGETS, "targets", "position 2: each key is asked for once"),
    (MQAR, "test", MQAR_INPUTS, changed(MQAR_TARGETS, p8=8), "targets", "position 8: found 8, the inputs give 7"),
    (MQAR, "test", changed(MQAR_INPUTS, p5=3), MQAR_TARGETS, "inputs", "position 5: what asks for nothing is empty"),
    # state tracking
    (S3, "test", [3, 1], [3, _], "targets", "position 1: every position is scored"),
]


@pytest.mark.parametrize(("task", "split", "inputs", "targets", "array", "rule"), BROKEN)
def test_a_broken_rule_is_named_with_its_row(task, split, inputs, targets, array, rule):
    right = next(row[2:] for row in VALID if row[:2] == (task, split))
    rows = [np.array([valid, valid, broken, valid]) for valid, broken in zip(right, (inputs, targets), strict=True)]
    with pytest.raises(TaskRuleError, match=rule) as error:
        task.check(*rows, split)
    assert (error.value.array, error.value.row) == (array, 2)


def test_a_sample_of_the_rows_is_spread_over_all():
    rows = np.array([CMP_ROW] * 9 + [changed(CMP_ROW, p5=1)])
    with pytest.raises(TaskRuleError, match="the last position holds") as error:
        CMP.check(rows, rows, "train", most=3)
    assert error.value.row == 9


CHANCES = [(ICR, 1 / 4), (FCR, 1 / 5), (MEM, 1 / 4), (CMP, 2 / 9), (SC, 1 / 6), (MQAR, 1 / 6), (S3, 1 / 6)]


@pytest.mark.parametrize(("task", "chance"), CHANCES)
def test_chance_is_that_of_a_guess_among_what_targets_can_be(task, chance):
    """The compress token is always right: (1 + 8 * 1 / 8) / 9."""
    _, targets = task.generate(1000, np.random.default_rng(0), "test")
    assert task.chance == chance == (1 + (task is CMP)) / len(set(targets.flatten()) - {IGNORE_INDEX})


def test_arrays_of_another_shape_are_refused():
    with pytest.raises(TaskRuleError, match=r"targets: shape is \(1, 5\), must be \(1, 6\)"):
        CMP.check(np.array([CMP_ROW]), np.array([CMP_ROW[:-1]]), "train")


EDGES = [
    ("ncr", dict(vocab_size=5, noise_vocab_size=1, seq_len=4, frac_noise=0.95)),
    ("icr", dict(vocab_size=4, seq_len=4)),
    ("fcr", dict(vocab_size=5, seq_len=5, k_motif_size=1, v_motif_size=1)),
    ("fcr", dict(vocab_size=11, seq_len=17, k_motif_size=5, v_motif_size=3)),
    ("mem", dict(vocab_size=5, seq_len=2)),
    ("cmp", dict(vocab_size=3, seq_len=2)),
    ("sc", dict(vocab_size=4, seq_len=4, num_tokens_to_copy=1)),
    ("mqar", dict(vocab_size=4, seq_len=4, num_kv_pairs=1)),
]


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(("name", "parameters"), EDGES)
def test_the_smallest_tasks_generate_valid_rows(name, parameters, split):
    task = make_task(name, **parameters)
    task.check(*task.generate(2000, np.random.default_rng(2), split), split)


IMPOSSIBLE = [
    ("icr", dict(seq_len=127), r"task.seq_len=127: .*even"),
    ("ncr", dict(vocab_size=19), r"task.vocab_size=19: must be at least 20, .*16 noise tokens"),
    ("ncr", dict(frac_noise=1.0), r"task.frac_noise=1.0: .*below 1"),
    ("ncr", dict(frac_noise="much"), r"task.frac_noise='much' must be a number"),
    ("icr", dict(frac_noise=0.2), r"task.noise_vocab_size=0: .*task.frac_noise=0.2 needs noise tokens"),
    ("fcr", dict(seq_len=12), r"task.seq_len=12: must be above .*12"),
    ("fcr", dict(vocab_size=512, seq_len=64, k_motif_size=5), r"task.k_motif_size=5, .*more than 2\^40"),
    ("mem", dict(vocab_size=4), r"task.vocab_size=4: .*at least 5"),
    ("mem", dict(map_seed=-1), r"task.map_seed=-1: must be a whole number of at least 0"),
    ("cmp", dict(vocab_size=2), r"task.vocab_size=2: .*at least 3"),
    ("mqar", dict(num_kv_pairs=33), "task.seq_len=128: must be even and at least 132"),
    ("mqar", dict(vocab_size=17), "task.vocab_size=17: must be at least 18"),
    ("mqar", dict(power_a=0), "task.power_a=0: must be a finite number above 0"),
    ("mqar", dict(random_non_queries=1), "random_non_queries=1 must be true or false"),
    ("state_tracking", dict(group="D4"), "task.group='D4': choose Z2, S3, A5, S5"),
    ("state_tracking", dict(group="S5"), "task.vocab_size=6: must be 120, the number of elements of task.group=S5"),
    ("sc", dict(seq_len=33), r"task.seq_len=33: too short for task.num_tokens_to_copy=16: .*at least 34"),
]


@pytest.mark.parametrize(("name", "parameters", "message"), IMPOSSIBLE)
def test_an_impossible_parameter_is_named(name, parameters, message):
    with pytest.raises(ValueError, match=f"(?i){message}"):
        make_task(name, **parameters)
