"""Settings by name: the benchmark's grid, values set directly, labels, and unknown names."""

from dataclasses import dataclass

import pytest
from golden_data import MAD_TASKS, task_config
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


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("cmp", dict(name=None), "name is missing"),
        ("cmp", dict(setting=None), r"task=cmp: setting is missing.*/task_base@_here_"),
        ("cmp", dict(baseline=None), "task=cmp: its yaml must have baseline"),
        ("cmp", dict(changes={"seq_len": 64}), "task=cmp: its yaml must have baseline.* changes"),
        ("sc_challenge", dict(levels={"1-2": 3}), "task=sc_challenge: its yaml must have .*levels"),
        ("cmp", dict(seq_len=None), r"seq_len is missing: add `seq_len: \$\{setting:seq_len\}`"),
        ("cmp", dict(depth=3), "unknown key task.depth=3; Compression takes: vocab_size"),
        ("cmp", dict(baseline={"vocab_size": 16, "seq_len": 32, "num_train_examples": 9, "depth": 3}), "depth: "),
        ("cmp", dict(_target_="mixerlab.tasks.compression.Compresion"), "task=cmp: .*Compresion.*: Compression$"),
        ("cmp", dict(_target_=5), "task=cmp: _target_=5"),
    ],
)
def test_a_yaml_that_is_no_tasks_says_what_to_write(name, lines, message):
    with pytest.raises(ValueError, match=message):
        build_task(with_lines(name, lines))


def test_a_setting_without_effect_is_refused():
    message = r"task.setting=vocab_size-32 has no effect, because task.vocab_size=16 is set as well, .* leave one"
    with pytest.raises(ValueError, match=message):
        build_task(task_config("icr", setting="vocab_size-32", vocab_size=16))
    assert build_task(task_config("icr", setting="vocab_size-32", vocab_size=32)).vocab_size == 32
    assert build_task(task_config("icr_challenge", setting="512-1024", vocab_size=64)).vocab_size == 64
