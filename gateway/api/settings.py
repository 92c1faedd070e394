"""What may pass from a client to an engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PassSettings:
    """``vllm_xargs``: keys of that body field that pass; all others are removed, since one can kill an engine.

    ``steering_headers``: headers that steer an engine (``x-data-parallel-rank``, ``x-vllm-priority``,
    ``x-session-id``, ...) which a client may send; lower case; none by default.
    ``authorization``: forward the client's ``Authorization`` to engines that have no key of their own.
    """

    vllm_xargs: tuple[str, ...] = ()
    steering_headers: tuple[str, ...] = ()
    authorization: bool = False

    def __post_init__(self) -> None:
        for name in self.steering_headers:
            if name != name.lower():
                raise ValueError(f"steering_headers: {name!r} must be lower case")
        if "kv_transfer_params" in self.vllm_xargs or "ec_transfer_params" in self.vllm_xargs:
            raise ValueError("vllm_xargs: kv_transfer_params and ec_transfer_params never pass")
