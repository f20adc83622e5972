"""Trains the cells of a sweep: the queue, its executors, searches, progress."""
