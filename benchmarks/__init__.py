"""Reproducible measurements: ``python -m benchmarks.NAME``, each printing a table of figures beside their targets.

Figures of a busy machine mean little: each is the median of several rounds, and the machine's load is printed with it.
"""
