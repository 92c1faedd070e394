"""Metrics and logs: implementations of ``core.observer``."""
