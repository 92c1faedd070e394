"""The contract for plugins: everything that a plugin needs is importable from ``gateway.framework``.

The life of a plugin:

1. discovered through an entry point of its group (``kvgate.filters``, ``.scorers``, ``.pickers``, ``.queues``,
   ``.handlers``); two distributions offering one name is an error;
2. its parameters (YAML) are checked against the class attribute ``Parameters``, a frozen dataclass whose fields have
   defaults or are required; a class without one takes no parameters; its ``__post_init__`` may raise ValueError;
3. constructed once for each instance in ``plugins``: ``Class(parameters, context)``; no side effects. An order of a
   queue is constructed once more for each model that names it;
4. its shape is checked: the methods of its kind, the right number of arguments, no coroutine functions;
5. called, always on the event loop's thread, synchronously, from the first request to the last.

An order of a queue has the methods that ``gateway.framework.waiting`` lists.

All optional: a plugin that must remember has ``on_placed(request, plan)`` and ``on_settled(request, plan, outcome)``.
What it remembers its likes in the host's other workers should know: a filter, scorer or picker calls ``context.tell``
with a note, bytes of its own making, and they get it by ``on_heard(note)``. ``remembered()`` returns the notes that a
worker which has just started must hear; each should take a millisecond to make, and to hear, at most.

A filter, scorer or picker may have ``answer_headers(request, plan)``, which returns headers of the answer, names in
lower case: what the client shall send back with its next request. It is called when an answer is about to begin.

A scorer may have ``explain(request, endpoint)``, which is called only when a decision is explained. It returns what the
score of one endpoint is made of: numbers by term, in the scorer's own unit, best so that their sum is what is scored.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gateway.framework.clock import Clock
from gateway.framework.fleet import Endpoint
from gateway.framework.request import Plan, Request


@dataclass(frozen=True, slots=True)
class NoParameters:
    """Of a plugin that has none."""


def alone(note: bytes, /) -> None:
    """There is no other worker."""


@dataclass(frozen=True, slots=True)
class Context:
    """What the gateway hands to a plugin's constructor. ``name`` is the instance's name in plugins.yaml. ``tell`` sends
    a note to the same instance in the host's other workers, if there are any; it never waits."""

    name: str
    clock: Clock
    random: random.Random
    tell: Callable[[bytes], None] = alone


class Filter(Protocol):
    """A rule: returns a subset of ``endpoints``, order kept. If it raises, the request fails."""

    def filter(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[Endpoint]: ...


class Scorer(Protocol):
    """Advice: one number in 0..1 per endpoint, in their order. If it raises, it counts as silent (0 for all).

    One whose scores differ by the endpoints' loads and by what they hold of the prompt, and by nothing else, may have
    ``compares_load = True``. Where all scorers of a profile have it, and other gateways place requests on the same
    endpoints, a part of the endpoints is left out by chance while their bookings are not known, so that not all choose
    the same one.
    """

    def score(self, request: Request, endpoints: Sequence[Endpoint], /) -> Sequence[float]: ...


class Picker(Protocol):
    """Best first; at least one of ``endpoints`` (which are never empty). If it raises, the request fails."""

    def pick(self, request: Request, endpoints: Sequence[Endpoint], scores: Sequence[float], /) -> Sequence[Endpoint]:
        """``scores``: of each endpoint the weighted sum of what the scorers say, in their order."""
        ...


class NoEndpoint(Exception):
    """A profile has left no endpoint: what a handler may catch from ``run``, to plan without it."""


RunProfile: TypeAlias = Callable[[str, Sequence[Endpoint]], Sequence[Endpoint]]
"""``run(profile_name, endpoints)`` -> best first, never empty; raises NoEndpoint naming the filter that emptied it."""


class Handler(Protocol):
    """Runs profiles and makes a plan of their results. If it raises, the request fails. So it does if the plan has an
    endpoint that was no candidate.

    It may have an attribute ``profiles``, the names that it will run: a name that is nowhere then stops the start.
    """

    def plan(self, request: Request, endpoints: Sequence[Endpoint], run: RunProfile, /) -> Plan: ...
