"""What a client asks of a KV connector: the legs of a split request, and the bodies that kill an engine.

Pure data and reading; what is done with it is each protocol's (the other files of this package).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from simulator.errors import EngineDead, invalid
from simulator.settings import EngineSettings


class Leg(StrEnum):
    """Which half of a split request this one is."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Transfer:
    """``params``: the protocol's fields as they came. ``remote_cached``: tokens that the prefill engine reports to have
    found in its cache. ``fault``: what shall become of the load, if not what becomes of any ("hang", "fail").
    """

    leg: Leg
    params: Mapping[str, Any] = field(default_factory=dict)
    remote_cached: int | None = None
    fault: str | None = None

    def break_by(self, fault: str) -> Transfer:
        return replace(self, fault=fault)


def read_params(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The body's ``kv_transfer_params``, wherever they hide; None: there are none.

    Raises ApiError for a wrong type, EngineDead where nothing checks it.
    """
    params = body.get("kv_transfer_params")
    if params is not None and not isinstance(params, dict):
        raise invalid("dict_type", "body.kv_transfer_params", "Input should be a valid dictionary", body)
    extra = body.get("vllm_xargs")
    if params is None and isinstance(extra, dict) and "kv_transfer_params" in extra:
        # ``extra_args`` are read unchecked: a string has no ``get``.
        params = extra["kv_transfer_params"]
        if not isinstance(params, dict):
            raise EngineDead("vllm_xargs.kv_transfer_params is no object")
    return params or None


def leg_of(body: Any, settings: EngineSettings) -> Leg | None:
    """The leg that a body is at an engine, before anything of it is checked. SGLang's say the same to both."""
    if settings.connector == "sglang":
        return Leg.PREFILL if settings.kv_role == "producer" else Leg.DECODE
    params = body.get("kv_transfer_params") if isinstance(body, dict) else None
    if not isinstance(params, dict):
        return None
    if params.get("do_remote_prefill"):
        return Leg.DECODE
    return Leg.PREFILL if params.get("do_remote_decode") else None
