"""Several processes that serve one port: a parent, which serves nobody itself, and its workers.

``service`` is the parent's program, ``post`` what a worker has of its parent.
"""
