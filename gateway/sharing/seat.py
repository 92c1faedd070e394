"""The place of a worker among the workers of its host: what its parent gives it when it starts it.

Rules: the parent writes it into the environment and the worker's descriptors are inherited. Who finds no seat there is
the only process of its service.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

VARIABLE = "KVGATE_SEAT"
"""The environment variable that holds it, as a JSON object."""

MAX_WORKERS = 256
"""More than any host's cores that one parent would use; each worker holds a connection to each other one."""


class OtherVersion(Exception):
    """The parent is of another version of kvgate: the memory that it shares may have another form."""


@dataclass(frozen=True, slots=True)
class Seat:
    """``number``: 0..count-1, kept by the successor of a worker that died. ``count``: of workers, 1..256.

    ``directory``: where the workers' Unix sockets are, absolute; only their user may enter it. ``loads_fd`` and
    ``limits_fd``: of the shared memory of loads and of limits; -1: there is none. ``version``: of the parent's kvgate,
    which has made that memory.
    """

    number: int
    count: int
    directory: str
    loads_fd: int = -1
    limits_fd: int = -1
    version: str = ""

    def __post_init__(self) -> None:
        """Raises ValueError if it is not as above."""
        numbers = (self.number, self.count, *self.descriptors)
        if any(type(number) is not int for number in numbers):
            raise ValueError(f"a seat has whole numbers, not {numbers}")
        if not 1 <= self.count <= MAX_WORKERS:
            raise ValueError(f"a seat is one of 1 to {MAX_WORKERS}, not of {self.count}")
        if not 0 <= self.number < self.count:
            raise ValueError(f"seat {self.number} is not one of {self.count}, which are counted from 0")
        if not str(self.directory).startswith("/"):
            raise ValueError(f"the directory of a seat is an absolute path, not {self.directory!r}")
        if any(descriptor < -1 for descriptor in self.descriptors):
            raise ValueError(f"the descriptors of a seat are -1 or more, not {self.descriptors}")

    @property
    def descriptors(self) -> tuple[int, int]:
        """Of the loads and the limits."""
        return self.loads_fd, self.limits_fd

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], version: str = "") -> Seat | None:
        """None: there is none. ``version``: of this kvgate. Raises ValueError, which names the variable, if it is not a
        seat; OtherVersion."""
        text = environ.get(VARIABLE, "")
        if not text:
            return None
        known = {field.name for field in fields(cls)}
        try:
            read = json.loads(text)
            # First of all: what else is in it is as that version has it.
            if isinstance(read, dict) and (other := read.get("version", "")) != version:
                raise OtherVersion(f"this is kvgate {version}, and its parent is kvgate {other}")
            if not (isinstance(read, dict) and {"number", "count", "directory"} <= read.keys() <= known):
                raise ValueError(f"it is no object with the keys {', '.join(sorted(known))}")
            return cls(**read)
        except ValueError as error:
            raise ValueError(
                f"{VARIABLE} is not a worker's seat, which only kvgate's own parent sets: {error}"
            ) from None

    def to_environment(self) -> dict[str, str]:
        """The variable of a worker's environment; the descriptors must be passed to it under the same numbers."""
        return {VARIABLE: json.dumps(asdict(self))}
