"""Sweeps: launching them, tables and figures of their records, reports. Needs no PyTorch."""
