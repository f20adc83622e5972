"""The two models of the benchmark, built of blocks around a mixer; `stream.py` has what makes them fast."""
