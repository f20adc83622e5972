"""What a run costs a GPU, from the rows of runs that were made."""

import pytest

from mixerlab.results.costs import Costs


def test_costs_come_from_runs():
    """A cell that was run costs what it took; twice the replicas or a longer sequence cost more."""
    costs = Costs()
    assert 3 * costs.of_replica("draft", "attn", "sc", "seq_len-1024") == pytest.approx(94 / 2, abs=1)
    longer = costs.of_replica("draft", "gdn", "icr_vocab_challenge", "1024-2048")  # which no recipe has run
    assert longer == pytest.approx(costs.of_replica("draft", "gdn", "icr", "seq_len-1024") * 2**1.2)
    of_default = costs.of_replica("default", "attn", "sc_challenge", "512-2048")
    of_heads = costs._ratio("4x32", "2x64", "attn")
    assert costs.of_replica("4x32", "attn", "sc_challenge", "512-2048") == pytest.approx(of_default * of_heads)
    assert costs.of_replica("default", "gdn", "mem", "baseline") == costs.of_replica("2x64", "gdn", "mem", "baseline")
