"""Finds other distributions that install a package under one of our names.

``gateway``, ``scorers``, ``filters``, ``pickers`` and ``simulator`` are short names, which another distribution may
use, too. Of two packages with one name Python imports the first that it finds, and users of the other get strange
errors.
"""

from __future__ import annotations

from importlib.metadata import packages_distributions

DISTRIBUTION = "kvgate"
PACKAGES = ("gateway", "scorers", "filters", "pickers", "simulator")


def clashes() -> list[str]:
    """One sentence for each clash in this environment, naming the package and who else installs it."""
    installed = packages_distributions()
    found = []
    for package in PACKAGES:
        others = sorted({name for name in installed.get(package, ()) if name.lower() != DISTRIBUTION})
        if others:
            found.append(
                f"the package {package!r} of {DISTRIBUTION} is also installed by {', '.join(others)}: "
                f"give {DISTRIBUTION} an environment of its own"
            )
    return found
