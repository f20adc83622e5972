"""Keys that were swept have columns and rows of their own, for any mixers; `by` and `where` choose."""

import fakes
import pytest

from mixerlab.records.names import axis_of
from mixerlab.records.schema import ACCURACY, Score
from mixerlab.sweeps.tables.collect import collect
from mixerlab.sweeps.tables.columns import Column, columns_in_order, labels
from mixerlab.sweeps.tables.notes import notes_of
from mixerlab.sweeps.tables.swept import only_where, swept_keys
from mixerlab.sweeps.tables.tables import setting_table, task_table


def add(results, score=0.7, changed=None, **given):
    return fakes.add_run(results, [0.1, score, 0.1], changed=changed, **given)


def heads(results, by=None):
    """The columns of a table, in its order."""
    columns = columns_in_order(fakes.frame_of(results, by)["column"].dropna())
    return list(labels(columns).values())


def rows(results, by=None):
    """Accuracies by setting, then by column."""
    cells = fakes.cells_of(results, by)
    names = labels(cells["column"])
    return {(cell.setting, names[cell.column]): cell.mean for cell in cells.itertuples() if cell.n}


@pytest.fixture
def widths(tmp_path):
    """Two mixers of three widths on one task, of one on another."""
    for mixer in ("attn", "gdn"):
        for width in (64, 128, 256):
            add(tmp_path, width / 400, {"model.d_model": width}, mixer=mixer)
        add(tmp_path, 0.9, mixer=mixer, task="mem")
    return tmp_path


def test_a_swept_key_is_a_column_for_each_value_of_every_mixer(widths):
    expected = [f"{mixer}, d_model={width}" for mixer in ("attn", "gdn") for width in (64, 128, 256)]
    assert heads(widths) == expected and swept_keys(collect(widths)) == ["model.d_model"]
    table = task_table(fakes.cells_of(widths))
    column = Column("gdn", (("model.d_model", "64"),))
    assert column in table.frame and table.frame.loc["icr", column].mean == 0.16
    assert table.frame.loc["mem", column].status == "missing"


def test_the_keys_of_two_optimizers_say_no_more_than_their_names(tmp_path):
    for name, extra in (("muon", {"optimizer.momentum": 0.95}), ("adamw", {"optimizer.eps": 1e-8})):
        add(tmp_path, changed={"optimizer.name": name, **extra})
    assert heads(tmp_path) == ["attn, optimizer=adamw", "attn, optimizer=muon"]
    add(tmp_path, changed={"optimizer.name": "muon", "optimizer.momentum": 0.9})
    assert "attn, optimizer=adamw" in heads(tmp_path) and "attn, optimizer=muon, momentum=0.9" in heads(tmp_path)


def test_an_optimizer_inside_another_is_told_by_its_class(tmp_path):
    for name, keys in (("Lion", {"beta": 0.9}), ("NAdam", {"decay": 0.1}), ("NAdam", {"decay": 0.2})):
        inner = {"_target_": f"package.{name}", **keys}
        changed = {"optimizer.name": "torch", "optimizer._target_": "mixerlab.T", "optimizer.all": inner}
        add(tmp_path, changed=changed, provenance={"code_version": {"training": name}})
    expected = ["attn, all=package.Lion", *(f"attn, all=package.NAdam, decay={decay}" for decay in (0.1, 0.2))]
    assert heads(tmp_path) == expected
    assert not [note for note in notes_of(fakes.frame_of(tmp_path)) if "code changed" in note]
    inner = {"_target_": "package.Soap"}
    add(tmp_path, changed={"optimizer.name": "soap", "optimizer._target_": "mixerlab.T", "optimizer.all": inner})
    pair = {"optimizer.matrices": {"_target_": "package.Muon"}, "optimizer.others": {"_target_": "package.Adam"}}
    add(tmp_path, changed={"optimizer.name": "torch", "optimizer._target_": "mixerlab.T", **pair})
    torch = [heading.replace("attn,", "attn, optimizer=torch,") for heading in expected]
    torch += ["attn, optimizer=torch, matrices=package.Muon, others=package.Adam"]
    assert set(heads(tmp_path)) == {"attn, optimizer=soap", *torch}


def test_null_is_a_value_and_a_missing_key_is_null(tmp_path):
    """Where a column left out NaN, the variants `null` and `0.02` were one, and its best was shown."""
    add(tmp_path, 0.7, seed=0)
    add(tmp_path, 0.8, {"model.linear_std": None}, seed=1)
    assert heads(tmp_path) == ["attn"]
    add(tmp_path, 0.9, {"model.linear_std": 0.02})
    expected = {"attn, linear_std=null": pytest.approx(0.75), "attn, linear_std=0.02": 0.9}
    assert {column: mean for (_, column), mean in rows(tmp_path).items()} == expected


def test_an_option_that_most_columns_have_off_is_named_where_it_is_on(tmp_path):
    for gate, width in ((False, 64), (False, 128), (True, 64)):
        add(tmp_path, changed={"mixer.gate": gate, "model.d_model": width})
    assert heads(tmp_path) == ["attn, d_model=64", "attn, d_model=128", "attn, gate=true, d_model=64"]


def test_false_and_a_missing_key_are_one_column(tmp_path):
    add(tmp_path, 0.7, seed=0)
    add(tmp_path, 0.8, {"mixer.gate": False}, seed=1)
    assert heads(tmp_path) == ["attn"]
    add(tmp_path, 0.9, {"mixer.gate": True})
    add(tmp_path, 0.6, mixer="gdn")
    assert heads(tmp_path) == ["attn, gate=false", "attn, gate=true", "gdn"]


def test_a_key_of_the_task_makes_rows_whatever_columns_are_by(tmp_path):
    """Runs on different data never compete."""
    for seed in (1, 2):
        for width in (64, 128):
            add(tmp_path, seed / 10 + width / 1000, {"model.d_model": width}, data_seed=seed)
    names = ["baseline, data_seed=1", "baseline, data_seed=2"]
    assert list(rows(tmp_path)) == [(name, f"attn, d_model={width}") for name in names for width in (64, 128)]
    assert rows(tmp_path, by=["mixer"]) == {(names[0], "attn"): 0.228, (names[1], "attn"): 0.328}
    table = setting_table(fakes.cells_of(tmp_path, ["mixer"]))
    assert any("the best of 2 configurations" in remark for remark in table.notes)


def test_a_setting_with_several_data_seeds_counts_once_in_the_mean_of_its_task(tmp_path):
    for seed, score in ((1, 0.2), (2, 0.4)):
        add(tmp_path, score, data_seed=seed)
    add(tmp_path, 0.9, setting="seq_len-256", data_seed=1)
    (entry,) = task_table(fakes.cells_of(tmp_path)).entries
    assert entry.mean == pytest.approx(0.6) and (entry.done, entry.total) == (3, 3)


def test_a_name_tells_no_key_that_it_tells_already(tmp_path):
    """Data on disk tell the vocabulary and the score that go with them."""
    bits = Score("bits_per_token", higher_is_better=False)
    for digest, size, score in (("a1" * 32, None, ACCURACY), ("b2" * 32, 300, bits), ("c3" * 32, 300, bits)):
        data = {"task.data_sha256": digest, "task.size": size}
        fakes.add_run(tmp_path, [0.1, 0.5, 0.1], changed=data, score=score)
    names = set(fakes.frame_of(tmp_path)["setting"])
    assert names == {f"baseline, data={digits}" for digits in ("a1a1a1a1", "b2b2b2b2", "c3c3c3c3")}
    fakes.add_run(tmp_path, [0.1, 0.5, 0.1], changed=data | {"task.size": 400}, score=bits)
    assert "baseline, data=c3c3c3c3, size=400" in set(fakes.frame_of(tmp_path)["setting"])


def test_a_note_names_the_first_three_settings(tmp_path):
    for seed in range(6):
        add(tmp_path, data_seed=seed)
    add(tmp_path, data_seed=5, mixer="gdn")
    notes = task_table(fakes.cells_of(tmp_path)).notes
    first = "; ".join(f"baseline, data_seed={seed}" for seed in range(3))
    assert f"gdn: missing on icr ({first} and 2 more)." in notes


def test_a_setting_departs_by_a_number_or_has_no_axis():
    assert axis_of("S3-128,test_seq_len=256") == ("S3-128", "test_seq_len", 256.0)
    assert axis_of("sizes=[1, 2]") is axis_of("group=S5") is axis_of("seq_len=inf") is None


def test_layers_of_hybrids_and_classes_of_one_name_have_columns(tmp_path):
    for heads_of_first in (2, 4):
        layers = {"0": {"name": "attn", "num_heads": heads_of_first}, "1": {"name": "gdn", "num_heads": 8}}
        add(tmp_path, mixer="hybrid", changed={"mixer.options": layers, "mixer.layers": ["attn", "gdn"]})
    for target in ("mixers.own.Own", "mixers.own2.Own"):
        add(tmp_path, mixer="own", changed={"mixer._target_": target})
    hybrids = [f"hybrid, layer 0 num_heads={number}" for number in (2, 4)]
    assert heads(tmp_path) == [*hybrids, *(f"own, _target_=mixers.{name}.Own" for name in ("own", "own2"))]
    assert heads(tmp_path, by=["mixer"]) == ["hybrid", "own"]


def test_by_other_keys(widths):
    assert heads(widths, by=["optimizer.name"]) == ["attn, optimizer=muon", "gdn, optimizer=muon"]
    rates = [f"{mixer}, lr={rate}" for mixer in ("attn", "gdn") for rate in ("0.0005", "0.001", "0.005")]
    assert heads(widths, by=["optimizer.lr"]) == rates
    cells = fakes.cells_of(widths, ["optimizer.lr"])
    assert not any(cells["lacking"])  # each column has one rate
    with pytest.raises(ValueError, match=r"no record has the key model\.d_modl: .* model\.d_model"):
        heads(widths, by=["model.d_modl"])


@pytest.mark.parametrize(
    ("conditions", "count"),
    [
        (["model.d_model=64.0", "optimizer.name=muon"], 6),
        (["model.d_model=64,1.28e2", "task.name=icr"], 12),
        (["model.d_model=64,7,8"], "7 or 8; there are 64, 128, 256"),
        (["mixr=attn"], "no record has the key mixr: .* mixer,"),
        (["nope=1"], r"key nope: .* optimizer\.lr, model\.d_model$"),  # what was swept, or stands in a table anyway
    ],
)
def test_where(widths, conditions, count):
    if isinstance(count, int):
        assert len(only_where(collect(widths), conditions)) == count
    else:
        with pytest.raises(ValueError, match=count):
            only_where(collect(widths), conditions)


def test_one_variant_of_a_mixer_beside_others_that_have_no_such_key(tmp_path):
    for gate in (False, True):
        add(tmp_path, mixer="gdn", changed={"mixer.gate": gate})
    add(tmp_path)
    frame = collect(tmp_path)
    assert set(only_where(frame, ["mixer.gate=true,null"])["config"]) < set(frame["config"])
    assert len(only_where(frame, ["mixer.gate=true,null"])) == len(only_where(frame, ["mixer.gate=false"]))
    assert set(only_where(frame, ["mixer.gate=null"])["mixer"]) == {"attn"}


def test_epochs_that_follow_from_tokens_are_not_swept(tmp_path):
    for tokens, epochs in ((1e4, 1), (4e5, 2)):
        add(tmp_path, 0.8, {"task.tokens": tokens, "trainer.epochs": epochs})
    assert set(fakes.frame_of(tmp_path)["column"]) == {Column("attn")}
    add(tmp_path, 0.9, {"trainer.epochs": 3})
    add(tmp_path, 0.9, {"trainer.epochs": 4})
    assert len(set(fakes.frame_of(tmp_path)["column"])) > 1


def test_a_key_of_the_schedule_is_swept_within_a_setting(tmp_path):
    """A number of warm-up steps is another fraction of the training on each setting."""
    for setting, share in (("baseline", 0.01), ("num_train_examples-6400", 0.02)):
        add(tmp_path, 0.8, {"schedule.warmup": share}, setting=setting)
    assert set(fakes.frame_of(tmp_path)["column"]) == {Column("attn")}
    add(tmp_path, 0.9, {"schedule.warmup": 0.02})
    assert len(set(fakes.frame_of(tmp_path)["column"])) == 2


def test_an_inner_width_that_follows_from_the_width_is_not_swept(widths):
    """As with `model.match_params=attn`: else no line by d_model would have two points."""
    for width in (64, 128, 256):
        add(widths, 0.5, {"model.d_model": width, "model.d_ff": 2 * width}, mixer="mamba")
    assert swept_keys(collect(widths)) == ["model.d_model"]
    add(widths, 0.5, {"model.d_model": 64, "model.d_ff": 64}, mixer="mamba")
    assert swept_keys(collect(widths)) == ["model.d_ff", "model.d_model"]
