"""Measurements of speed and kernel error. Each module is a command: `python -m mixerlab.benchmarks.<name> --help`."""
