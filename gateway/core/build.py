"""Which build of kvgate this is: the sources as they are, or a wheel in which some of them are compiled."""

from __future__ import annotations

from gateway.framework import cost

BUILD = "pure Python" if str(cost.__file__).endswith(".py") else "compiled"
"""A wheel has either all of the modules compiled that pyproject.toml lists, or none."""
