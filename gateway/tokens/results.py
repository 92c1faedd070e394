"""What a prompt becomes for placement: its exact token ids, or an estimate made of its bytes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.core.prompt import BYTES_PER_TOKEN, ChatInput, Ids, Prompt, TextInput, estimate
from gateway.tokens.agreement import Form
from gateway.tokens.media import without_payloads


def exact(ids: Sequence[Ids], *, ours: bool = True) -> Prompt:
    """The prompt of these ``ids``, one sequence for each of the request's prompts: at least one. ``ours``: our
    tokenizer made the ids, and not the client."""
    first, single = ids[0], len(ids) == 1
    count = len(first) if single else sum(map(len, ids))
    return Prompt(first, count, True, single=single, own=first if ours and single else None)


def estimated(raws: Sequence[bytes], why: str) -> Prompt:
    """An estimate of prompts with these bytes, of which there is at least one. ``why``: the reason, a label. The bytes
    of images and the like in a single prompt are left out, as far as they stand there as base64."""
    if len(raws) == 1:
        return estimate(without_payloads(raws[0]), why)
    prompt = estimate(raws[0], why)
    return replace(prompt, count=max(1, sum(map(len, raws)) // BYTES_PER_TOKEN), single=False)


def form_of(prompt: ChatInput | TextInput) -> Form:
    """The form in which it is rendered."""
    return Form.CHAT if isinstance(prompt, ChatInput) else Form.TEXT


def raws_of(prompt: ChatInput | TextInput) -> list[bytes]:
    """The bytes from which an estimate is made."""
    if isinstance(prompt, ChatInput):
        return [bytes(prompt.raw)]
    return [text.encode("utf-8", "replace") for text in prompt.texts]
