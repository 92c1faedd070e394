"""What a prompt is that no engine would take."""

from __future__ import annotations


class Unreadable(Exception):
    """Not what vLLM's models take, or not the same twice: the prompt's tokens are not known, and the refusal, if there
    is to be one, is the engine's."""
