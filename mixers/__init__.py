"""Sequence mixers: one file each, with a yaml of the same name in `conf/mixer/`."""
