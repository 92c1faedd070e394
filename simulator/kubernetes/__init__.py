"""A Kubernetes API server of what tests write into it: over real HTTP, with versions, a bounded history and faults.

It has what a watcher sees of a real one, and nothing that makes pods run: see ``server.py``.
"""
