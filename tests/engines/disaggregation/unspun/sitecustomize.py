"""Patches NIXL in the engines of these tests: its agents get no progress thread.

That thread polls without a pause: an engine with a NIXL connector takes a whole core while it does nothing, and four
engines on two cores would answer nothing in time. Neither NIXL nor vLLM has an option for it, so the default of
``nixl_agent_config`` is changed, in every Python process whose PYTHONPATH holds this folder. What remains of NIXL is
real: the handshake, the registered memory, the reads and the notifications. Progress is then made by the calls of
vLLM's own steps; on one host, over shared memory, that is enough.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

PATCHED = "nixl_cu12._api"


def drop_progress_thread(module: ModuleType) -> None:
    """Make ``enable_prog_thread``, the first parameter of the agents' configuration, false by default."""
    construct = module.nixl_agent_config.__init__
    spins, *others = construct.__defaults__
    assert spins is True, "nixl_agent_config has other defaults than in 1.5.1"
    construct.__defaults__ = (False, *others)


class PatchingFinder(importlib.abc.MetaPathFinder):
    """Finds one module, as the others do, and patches it once it has run."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != PATCHED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def run_and_patch(module: ModuleType) -> None:
            run(module)
            drop_progress_thread(module)

        spec.loader.exec_module = run_and_patch  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, PatchingFinder())
