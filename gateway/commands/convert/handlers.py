"""The profile handler of a file: which of kvgate's handlers runs its profiles, and with which parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.commands.convert.document import Document, Instance, ProfileGiven
from gateway.commands.convert.given import Given
from gateway.commands.convert.types import ALWAYS, BY_HEADER, BY_LENGTH, DISAGGREGATED, PREFILL_DECODE, SINGLE
from gateway.commands.convert.verdict import Finding, Slot, Verdict
from gateway.config.origin import nearest


@dataclass(frozen=True, slots=True)
class Handled:
    """A handler of kvgate's. ``profiles``: those that it runs; others are left out."""

    type: str
    parameters: Mapping[str, Any]
    profiles: tuple[str, ...]
    findings: tuple[Finding, ...] = field(default=())


def handler_of(document: Document) -> Handled:
    """Raises ConfigError if the file has two handlers, or one that does not fit its profiles."""
    names = {one.name: one for one in document.profiles}
    handlers = [one for one in document.instances.values() if one.type.slot is Slot.HANDLER]
    if len(handlers) > 1:
        raise document.origin.error(handlers[1].given.path[:2], "there are two profile handlers")
    if not handlers or handlers[0].type.name in SINGLE:
        return _single(document, handlers[0] if handlers else None, names)
    [handler] = handlers
    made = _by_header if handler.type.name == BY_HEADER else _disaggregated
    assert handler.type.name == BY_HEADER or handler.type.name in DISAGGREGATED
    handled = made(document, handler, names)
    handler.given.end()
    return handled


def _single(document: Document, handler: Instance | None, names: Mapping[str, ProfileGiven]) -> Handled:
    if len(names) > 1:
        path = ("schedulingProfiles",) if handler is None else handler.given.path[:2]
        raise document.origin.error(path, f"{len(names)} profiles need a handler that says when each is run")
    [name] = names
    said = () if handler is None else (_finding(handler, f"handler `single` with the profile {name!r}"),)
    return Handled("single", {"profile": name}, (name,), said)


def _by_header(document: Document, handler: Instance, names: Mapping[str, ProfileGiven]) -> Handled:
    given = handler.given
    header = given.text("headerName").strip().lower() or "epp-profile"
    default = given.text("defaultProfile").strip() or "decode"
    if len(names) == 1:  # it is run whatever the header says
        [name] = names
        return Handled(
            "single", {"profile": name}, (name,), (_finding(handler, "handler `single`: there is one profile"),)
        )
    if default not in names:
        raise given.error("defaultProfile", f"there is no profile {default!r}{nearest(default, names)}")
    parameters = {"profiles": list(names), "default": default} | ({"header": header} if header != "epp-profile" else {})
    return Handled("header-profile", parameters, tuple(names), (_finding(handler, "handler `header-profile`"),))


def _disaggregated(document: Document, handler: Instance, names: Mapping[str, ProfileGiven]) -> Handled:
    given = handler.given
    profiles, deciders = given.within("profiles"), given.within("deciders")
    decode = profiles.text("decode") or given.text("decodeProfile") or "decode"
    prefill = profiles.text("prefill") or given.text("prefillProfile") or "prefill"
    encode = profiles.text("encode") or given.text("encodeProfile") or "encode"
    by = deciders.text("prefill") or given.text("prefillDeciderPluginName") or given.text("deciderPluginName")
    encodes = deciders.text("encode") or given.text("encodeDeciderPluginName")
    # What pd-profile-handler had, and nobody reads any more; the order of the stages changes no plan of two.
    for name in ("prefixPluginType", "prefixPluginName", "primaryPort", "threshold", "hashBlockSize", "stageOrder"):
        given.raw(name)
    given.raw("prefixMatchInfoProducerName")  # as of its decider
    profiles.end()
    deciders.end()
    if decode not in names:
        raise given.error("profiles", f"there is no profile {decode!r}{nearest(decode, names)}")
    findings: list[Finding] = []
    if encodes and encode in names:
        said = f"the profile {encode!r} is left out: there is no encode leg"
        findings.append(Finding(handler.line, handler.name, Verdict.MISSING, said))
    if not by and handler.type.name == PREFILL_DECODE:
        if BY_LENGTH in document.instances:  # by this name, whatever its type
            by = BY_LENGTH
        else:  # llm-d's versions differ in it, and the newer ones do not start
            said = f"no decider is named, and its default {BY_LENGTH!r} is no plugin of the file: none is split"
            findings.append(Finding(handler.line, handler.name, Verdict.MISSING, said))
    threshold = _threshold(document, given, by, findings)
    if threshold is None or prefill not in names:
        why = "nothing decides for a separate prefill" if threshold is None else f"there is no profile {prefill!r}"
        findings.append(_finding(handler, f"handler `single` with the profile {decode!r}: {why}"))
        return Handled("single", {"profile": decode}, (decode,), tuple(findings))
    parameters = {"prefill": prefill, "decode": decode, "threshold": threshold}
    findings.append(_finding(handler, f"handler `prefill-decode` from {threshold} tokens on"))
    return Handled("prefill-decode", parameters, (prefill, decode), tuple(findings))


def _threshold(document: Document, given: Given, by: str, findings: list[Finding]) -> int | None:
    """Uncached tokens from which a prompt is prefilled apart; None: none is."""
    if not by:
        return None
    decider = document.instances.get(by)
    if decider is None:
        raise given.error("deciders", f"there is no plugin {by!r}{nearest(by, document.instances)}")
    if decider.type.name == ALWAYS:
        decider.given.end()
        return 0
    if decider.type.name != BY_LENGTH:
        raise given.error("deciders", f"{by!r} does not decide about prefill")
    tokens = decider.given.integer("nonCachedTokens", 0)
    if (least := decider.given.integer("promptTokens", 0)) > tokens > 0:
        said = f"prompts of fewer than {least} tokens are split, too, from {tokens} uncached ones on"
        findings.append(Finding(decider.line, "promptTokens", Verdict.NEAR, said))
    decider.given.raw("prefixMatchInfoProducerName")
    decider.given.end()
    return tokens or None


def _finding(handler: Instance, said: str) -> Finding:
    return Finding(handler.line, handler.name, handler.type.verdict, said.replace("`", ""))
