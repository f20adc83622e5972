"""Settings by name: the challenge's levels, values set directly, labels, and unknown names."""

import pytest
from golden_data import task_config
from omegaconf import open_dict
from omegaconf.errors import InterpolationResolutionError

from mixerlab.config.settings import build_task, setting_name, settings_of


@pytest.mark.parametrize("name", ["icr_challenge", "ncr_challenge", "sc_challenge"])
def test_challenge_levels_are_the_papers(name):
    """A level is named after its pairs, noise among them, or tokens to copy, and after its length."""
    levels = settings_of(task_config(name))
    first = 256 if name == "icr_challenge" else 128
    assert list(levels) == [f"{first * 2**n}-{512 * 2**n}" for n in range(3)]
    for level in levels:
        task, (number, length) = build_task(task_config(name, setting=level)), map(int, level.split("-"))
        assert (task.seq_len, task.num_train_examples) == (length, 12800)
        assert task.vocab_size == (number // 2 if name == "icr_challenge" else number)
        assert getattr(task, "frac_noise", 0) == 0.5 * (name == "ncr_challenge")
        assert getattr(task, "num_tokens_to_copy", number) == number


@pytest.mark.parametrize(
    ("name", "changes", "label"),
    [
        ("icr", dict(seq_len=512), "seq_len-512"),
        ("icr", dict(seq_len=64), "seq_len=64"),
        ("icr", dict(setting="seq_len-512", vocab_size=8), "vocab_size=8,seq_len=512"),
        ("icr_challenge", dict(vocab_size=256, seq_len=1024), "512-1024"),
        ("mqar", dict(setting="8-128", seq_len=64, num_kv_pairs=5), "4-64,num_kv_pairs=5"),  # the same run
        ("ncr", dict(frac_noise=0), "frac_noise=0"),
        ("ncr", dict(frac_noise=0.0), "frac_noise=0"),  # the same run
        ("icr", dict(test_seq_len=256), "test_seq_len=256"),
        ("icr", dict(test_seq_len=128), "baseline"),  # the same rows
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
        ("cmp", dict(baseline=None), "task=cmp: its yaml may have baseline"),
        # It would be called the baseline.
        ("cmp", dict(changes={"data_seed": [2]}), r"of some of these.* it has .*, changes: {'data_seed': \[2\]}"),
        ("mqar", dict(levels={"1": {"seq_len": 8}, "2": {"seq_len": 8, "num_kv_pairs": 2}}), "each of the same"),
        ("cmp", dict(seq_len=None), r"seq_len is missing: add `seq_len: \$\{setting:seq_len\}`"),
        ("cmp", dict(depth=3), "unknown key task.depth=3; Compression takes: vocab_size"),
        ("cmp", dict(_target_="mixerlab.tasks.compression.Compresion"), "task=cmp: .*Compresion.*: Compression$"),
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
