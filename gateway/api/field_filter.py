"""Removes fields that must never pass from a client to an engine, in every form that a body may give them.

A malformed ``kv_transfer_params`` hangs a request for ever or kills a whole vLLM decode engine, and a well-formed one
makes it read another engine's memory. ``vllm_xargs`` and the ``extra_args`` of sampling parameters end in the same
place, so that only listed keys of those pass.

Rule: if one of these names is present at all, the object around it is written anew from its parsed keys. So an engine
cannot see an escaped spelling (``"\\u006bv_transfer_params"``) or a second copy of a key that we did not see.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.api.settings import NEVER, PassThroughSettings

EXTRAS = frozenset({"vllm_xargs", "extra_args"})
"""Objects that become an engine's ``SamplingParams.extra_args``: filtered by ``PassThroughSettings.vllm_xargs``."""
NESTS = frozenset({"sampling_params"})
"""Objects that may hold ``NEVER`` and ``EXTRAS`` themselves (vLLM's token-level generate API)."""
OBJECTS = frozenset({"kv_transfer_params", "ec_transfer_params", "vllm_xargs"})
"""Those that are fields of vLLM 0.32's generating requests."""
SENSITIVE = NEVER | EXTRAS | NESTS

REPORT_MODE = "kv_cache_report_mode"
FULL_REPORT = msgspec.Raw(b'"full"')

Fields = dict[str, msgspec.Raw]

_FIELDS = msgspec.json.Decoder(Fields)
_ANY = msgspec.json.Decoder()
_ENCODER = msgspec.json.Encoder()


def strip(fields: Fields, settings: PassThroughSettings) -> bool:
    """Remove from ``fields`` in place what may not pass; true if ``fields`` must be written anew."""
    present = SENSITIVE.intersection(fields)
    for name in present:
        if name in NEVER:
            del fields[name]
            continue
        kept = _kept(fields[name], name, settings)
        if kept is None:
            del fields[name]
        else:
            fields[name] = kept
    return bool(present)


def no_object(fields: Fields) -> str:
    """The name of a field that vLLM requires to be an object or null, and that is neither; empty if there is none."""
    for name in OBJECTS.intersection(fields):
        if bytes(memoryview(fields[name])[:4]) != b"null" and bytes(memoryview(fields[name])[:1]) != b"{":
            return name
    return ""


def strip_form_value(value: bytes, name: str, settings: PassThroughSettings) -> bytes | None:
    """The part of a form field with a sensitive name that may pass; None: the field is removed."""
    base = name.partition("[")[0]
    if base in NEVER:
        return None
    try:
        kept = _kept(msgspec.Raw(value), base, settings)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return None if kept is None else bytes(kept)


def sensitive(name: str) -> bool:
    """Whether a form field of this name needs ``strip_form_value``; ``vllm_xargs[key]`` spells a nested one."""
    return name.partition("[")[0] in SENSITIVE


def asks_report(fields: Fields) -> bool:
    """Whether an engine that gets these fields announces again which of the prompt's blocks it holds."""
    try:
        extras = _FIELDS.decode(fields["vllm_xargs"])
        return bool(_ANY.decode(extras[REPORT_MODE]) == "full")
    except (KeyError, msgspec.DecodeError):
        return False


def ask_report(fields: Fields) -> Mapping[str, msgspec.Raw] | None:
    """The ``vllm_xargs`` that request such an announcement, beside the client's own; None: the client has set the mode
    itself."""
    try:
        extras = _FIELDS.decode(fields["vllm_xargs"])
    except (KeyError, msgspec.DecodeError):  # there are none, or null
        extras = {}
    return None if REPORT_MODE in extras else {**extras, REPORT_MODE: FULL_REPORT}


def _kept(value: msgspec.Raw, name: str, settings: PassThroughSettings) -> msgspec.Raw | None:
    try:
        inner = _FIELDS.decode(value)
    except msgspec.ValidationError:
        # Not an object. Engines ignore null. They would refuse any other value, which is removed to be safe.
        return value if bytes(value).strip() == b"null" else None
    if name in NESTS:
        return msgspec.Raw(_ENCODER.encode(inner)) if strip(inner, settings) else value
    allowed = {key: inner[key] for key in inner if key in settings.vllm_xargs}
    return msgspec.Raw(_ENCODER.encode(allowed)) if allowed else None
