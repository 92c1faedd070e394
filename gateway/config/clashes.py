"""Other distributions that install a package of one of our names.

``gateway``, ``scorers``, ``filters``, ``pickers`` and ``simulator`` are short names, which an application may well have
taken; of two such packages Python imports whichever it finds first, and the other's users get strange errors.
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
