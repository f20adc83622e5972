"""Settings by name: the benchmark's grid, values set directly, labels, and unknown names."""

from dataclasses import dataclass

import pytest
from golden_data import CHALLENGE_TASKS, MAD_TASKS, task_config
from omegaconf import open_dict
from omegaconf.errors import InterpolationResolutionError

from mixerlab.config.settings import build_task, setting_name, settings_of
from mixerlab.tasks.compression import Compression

GRID = {"icr": 11, "ncr": 14, "fcr": 11, "mem": 6, "cmp": 11, "sc": 13}
CHALLENGE = {  # level -> its vocab_size, seq_len, and the parameter that sets its number of pairs or tokens
    "icr_challenge": {
        "256-512": dict(vocab_size=128, seq_len=512),
        "512-1024": dict(vocab_size=256, seq_len=1024),
        "1024-2048": dict(vocab_size=512, seq_len=2048),
    },
    "ncr_challenge": {
        "128-512": dict(vocab_size=128, seq_len=512, frac_noise=0.5),
        "256-1024": dict(vocab_size=256, seq_len=1024, frac_noise=0.5),
        "512-2048": dict(vocab_size=512, seq_len=2048, frac_noise=0.5),
    },
    "sc_challenge": {
        "128-512": dict(vocab_size=128, seq_len=512, num_tokens_to_copy=128),
        "256-1024": dict(vocab_size=256, seq_len=1024, num_tokens_to_copy=256),
        "512-2048": dict(vocab_size=512, seq_len=2048, num_tokens_to_copy=512),
    },
    # Other readings of the labels.
    "icr_vocab_challenge": {
        "256-512": dict(vocab_size=256, seq_len=512),
        "512-1024": dict(vocab_size=512, seq_len=1024),
        "1024-2048": dict(vocab_size=1024, seq_len=2048),
    },
    "ncr_vocab_challenge": {
        "128-512": dict(vocab_size=128, seq_len=512, frac_noise=0.2),
        "256-1024": dict(vocab_size=256, seq_len=1024, frac_noise=0.2),
        "512-2048": dict(vocab_size=512, seq_len=2048, frac_noise=0.2),
    },
    "sc_vocab16_challenge": {
        "128-512": dict(vocab_size=16, seq_len=512, num_tokens_to_copy=128),
        "256-1024": dict(vocab_size=16, seq_len=1024, num_tokens_to_copy=256),
        "512-2048": dict(vocab_size=16, seq_len=2048, num_tokens_to_copy=512),
    },
}


def test_the_benchmark_has_66_settings():
    assert {name: len(settings_of(task_config(name))) for name in MAD_TASKS} == GRID
    assert sum(GRID.values()) == 66


def test_settings_are_one_change_from_the_baseline():
    settings = settings_of(task_config("sc"))
    assert list(settings)[:2] == ["baseline", "vocab_size-32"]
    assert settings["baseline"] == {}
    assert settings["num_tokens_to_copy-96"] == {"num_tokens_to_copy": 96}


@pytest.mark.parametrize("name", MAD_TASKS + CHALLENGE_TASKS)
def test_tasks_have_the_benchmarks_split_sizes_and_seed(name):
    task = build_task(task_config(name))
    assert (task.num_val_examples, task.num_test_examples, task.data_seed) == (1280, 1280, 12345)


@pytest.mark.parametrize("name", CHALLENGE)
def test_challenge_levels_are_the_papers(name):
    for level, expected in CHALLENGE[name].items():
        task = build_task(task_config(name, setting=level))
        assert {key: getattr(task, key) for key in expected} == expected
        assert task.num_train_examples == 12800
    assert list(settings_of(task_config(name))) == list(CHALLENGE[name])


def test_every_change_is_a_parameter_of_the_baseline():
    for name in MAD_TASKS:
        cfg = task_config(name)
        for key, values in cfg.changes.items():
            assert cfg.baseline[key] not in values
            assert len(set(values)) == len(values)


def test_values_may_be_set_beside_the_setting():
    task = build_task(task_config("icr", setting="seq_len-512", vocab_size=8, num_test_examples=10))
    assert (task.seq_len, task.vocab_size, task.num_test_examples) == (512, 8, 10)


@pytest.mark.parametrize(
    ("name", "changes", "label"),
    [
        ("icr", dict(seq_len=512), "seq_len-512"),
        ("icr", dict(setting="seq_len-512", seq_len=128), "baseline"),
        ("icr", dict(seq_len=64), "seq_len=64"),
        ("icr", dict(setting="seq_len-512", vocab_size=8), "vocab_size=8,seq_len=512"),
        ("fcr", dict(k_motif_size=2), "k_motif_size=2"),
        ("ncr", dict(noise_vocab_size=8), "noise_vocab_size=8"),
        ("icr_challenge", dict(vocab_size=256, seq_len=1024), "512-1024"),
        ("sc_challenge", dict(setting="256-1024", seq_len=600), "256-1024,seq_len=600"),
        ("mqar", dict(setting="4-64", num_kv_pairs=5), "4-64,num_kv_pairs=5"),
        ("mqar", dict(setting="8-128", seq_len=64, num_kv_pairs=5), "4-64,num_kv_pairs=5"),  # the same run
        ("ncr", dict(frac_noise=0), "frac_noise=0"),
        ("ncr", dict(frac_noise=0.0), "frac_noise=0"),  # the same run
        ("ncr", dict(frac_noise=0.3), "frac_noise=0.3"),
        ("icr", dict(test_seq_len=256), "test_seq_len=256"),
        ("icr", dict(test_seq_len=128), "baseline"),
        ("icr", dict(setting="seq_len-512", test_seq_len=1024), "seq_len-512,test_seq_len=1024"),
        ("mqar", dict(test_seq_len=256), "8-128,test_seq_len=256"),
    ],
)
def test_the_label_names_what_the_config_resolves_to(name, changes, label):
    assert setting_name(task_config(name, **changes)) == label


def test_an_unknown_setting_lists_the_choices():
    cfg = task_config("mem", setting="seq_len-64")
    with pytest.raises(ValueError, match=r"task.setting=seq_len-64: mem has no such .* baseline, vocab"):
        build_task(cfg)
    with pytest.raises(InterpolationResolutionError, match="choose baseline, vocab_size-512"):
        _ = cfg.vocab_size


def test_a_key_that_the_settings_lack_is_named():
    cfg = task_config("cmp", data_seed="${setting:data_seed}")
    with pytest.raises(ValueError, match=r"task=cmp: \$\{setting:data_seed\} has no value, settings give vocab"):
        build_task(cfg)


def test_a_list_parameter_arrives_as_a_list():
    cfg = with_lines("cmp", {"_target_": f"{__name__}.Listed", "sizes": [1, 2]})
    assert type(build_task(cfg).sizes) is list


@dataclass(kw_only=True)
class Listed(Compression):
    """A task with a list among its parameters."""

    sizes: list[int]


def with_lines(name, lines):
    """A task's config as if its yaml had these lines; None removes a line."""
    cfg = task_config(name)
    with open_dict(cfg):
        for key, value in lines.items():
            cfg.pop(key, None)
            if value is not None:
                cfg[key] = value
    return cfg


BASE = r"add `defaults: \[/task_base@_here_, _self_\]` to its yaml"


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("cmp", dict(name=None), "task=\\?: name is missing, add `name: <name of the yaml>`"),
        ("cmp", dict(_target_=None), "task=cmp: _target_ is missing, add `_target_: mixerlab.tasks.<file>.<Class>`"),
        ("cmp", dict(setting=None), f"task=cmp: setting is missing, {BASE}"),
        ("cmp", dict(data_dir=None), f"task=cmp: data_dir is missing, {BASE}"),
        ("cmp", dict(baseline=None), "task=cmp: baseline is missing .* write `baseline: {<parameter>: <value>, ...}"),
        ("cmp", dict(changes=None), "task=cmp: changes is missing .* write `changes: {<parameter>: \\[<other value>"),
        ("cmp", dict(changes={"seq_len": 64}), "task=cmp: changes is .* in another form, write `changes: {"),
        ("sc_challenge", dict(levels=None), "task=sc_challenge: baseline is missing .*, or `levels: {<setting>: "),
        ("sc_challenge", dict(levels={"T=2": {}}), "task=sc_challenge: the level 'T=2' has a `=`"),
        ("sc_challenge", dict(levels={"1-2": 3}), "task=sc_challenge: levels is .* in another form, write `levels: {"),
    ],
)
def test_a_key_that_the_yaml_lacks_is_named_with_the_line_to_add(name, lines, message):
    cfg = with_lines(name, lines)
    for use in (build_task, settings_of):
        with pytest.raises(ValueError, match=message):
            use(cfg)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (dict(seq_len=None), r"seq_len is missing, add `seq_len: \$\{setting:seq_len\}` or a value to its yaml"),
        (dict(depth=3), "depth is no parameter of Compression, make it a field of this dataclass or remove it"),
        (dict(changes={"depth": [3]}), "depth is no parameter of Compression"),
        (dict(baseline={"vocab_size": 16, "seq_len": 32, "num_train_examples": 9, "depth": 3}), "depth is no param"),
        (
            dict(_target_="mixerlab.tasks.compression.Compresion"),
            r"\S*compression.py has no class Compresion; its classes: Compression$",
        ),
        (
            dict(_target_="mixerlab.tasks.compresion.Compression"),
            "mixerlab.tasks.compresion cannot be imported: ModuleNotFoundError: No module named 'mixerlab.tasks.comp",
        ),
        (dict(_target_="Compression"), "_target_='Compression' must be the dotted name of a class"),
        (dict(_target_=5), "_target_=5 must be the dotted name of a class"),
        (dict(_target_="mixerlab.tasks.base.TaskRuleError"), "TaskRuleError must be a subclass of mixerlab.Task"),
    ],
)
def test_a_parameter_or_class_that_does_not_fit_is_named(lines, message):
    with pytest.raises(ValueError, match=rf"task=cmp: {message}"):
        build_task(with_lines("cmp", lines))


def test_a_setting_without_effect_is_refused():
    message = r"task.setting=vocab_size-32 has no effect, because task.vocab_size=16 is set as well, .* leave one"
    with pytest.raises(ValueError, match=message):
        build_task(task_config("icr", setting="vocab_size-32", vocab_size=16))
    assert build_task(task_config("icr", setting="vocab_size-32", vocab_size=32)).vocab_size == 32
    assert build_task(task_config("icr_challenge", setting="512-1024", vocab_size=64)).vocab_size == 64
