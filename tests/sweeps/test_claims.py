"""A claim holds while its process lives, whatever kills it; no cell is lost and none runs twice at once."""

import multiprocessing
import time

from mixerlab.records.claims import claim, is_claimed


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
