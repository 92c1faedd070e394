"""What only the garbage collector could free. The fixture ``kept`` (tests/conftest.py) lets it keep what it finds."""

from __future__ import annotations

import gc


def ours() -> list[str]:
    """Kinds of the gateway's objects that only the collector could free, by now."""
    gc.collect()
    found = sorted({type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith("gateway.")})
    gc.garbage.clear()
    return found
