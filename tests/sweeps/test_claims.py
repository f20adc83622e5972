"""A claim holds while its process lives, whatever kills it; no cell is lost and none runs twice at once."""

import multiprocessing
import time

import pytest

from mixerlab.records.claims import claim, is_claimed


def test_one_claim_at_a_time_in_one_process(tmp_path):
    with claim(tmp_path / "new") as first:
        assert first
        with claim(tmp_path / "new") as second, claim(tmp_path / "other") as other:
            assert (second, other) == (False, True)
        with claim(tmp_path / "new") as third:
            assert not third  # the failed attempt did not let go of the first
    with pytest.raises(RuntimeError, match="boom"), claim(tmp_path / "new") as again:
        assert again
        raise RuntimeError("boom")
    assert not is_claimed(tmp_path / "new") and (tmp_path / "new/.claim").exists()


def hold(folder, is_held):
    with claim(folder):
        is_held.set()
        time.sleep(60)


def test_the_claim_of_a_killed_process_is_free(tmp_path):
    context = multiprocessing.get_context("fork")
    is_held = context.Event()
    process = context.Process(target=hold, args=(tmp_path, is_held))
    process.start()
    assert is_held.wait(30) and is_claimed(tmp_path)
    process.kill()
    process.join()
    assert not is_claimed(tmp_path)
    with claim(tmp_path) as ours:
        assert ours
