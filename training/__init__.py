"""Training of a population of replicas: backbone, optimizer, metrics and the Lightning parts.

Axes of all shapes: R replicas, B rows of a batch, T positions, S scored positions, V vocabulary, P parameters of one
replica.
"""
