"""What else than tokens is in a block's hash, and how far that can be told from an event. Pure.

Source: ``generate_block_hash_extra_keys`` and ``to_event_extra_keys`` in vLLM 0.32, ``vllm/v1/core/kv_cache_utils.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gateway.framework import Medium
from gateway.kvcache.events import BlockStored


class Trusted(NamedTuple):
    """How many leading blocks of a run are told by what is understood: tokens, adapter, salt, and ``media``.

    ``media``: those that begin in these blocks, in order; their places count from the run's first token.
    """

    blocks: int
    salt: str | None = None
    media: tuple[Medium, ...] = ()


def trusted(event: BlockStored) -> Trusted:
    """What ``event`` tells of its blocks.

    A block's extra keys are the adapter's name, a pair for each medium with a part in it (its identifier, and its first
    token counted from the block's), the salt (a prompt's first block only), a digest of embeddings, in this order and
    untagged. What is none of these, or does not fit to the blocks ahead, ends the trust. Engines before 0.13 tell an
    adapter by a number of their own.
    """
    if event.lora_id is not None and event.lora_name is None:
        return Trusted(0)
    count = len(event.block_hashes)
    if not event.extra_keys or not any(event.extra_keys):
        return Trusted(count)
    salt = None
    media: list[Medium] = []
    last: Medium | None = None  # that is in the block ahead, or began in this one
    begins = event.parent_block_hash is None
    for number, extra in enumerate(event.extra_keys):
        others = extra[1:] if extra and extra[0] == event.lora_name else extra
        if not others:
            continue
        start = number * event.block_size
        known = len(media)
        while others and (medium := _medium(others[0], start, event)) is not None:
            if medium.offset >= start and (last is None or medium.offset > last.offset):
                media.append(medium)
            elif medium != last and (number or begins or last is not None):
                break  # it had begun, and nothing said so
            last = medium
            others = others[1:]
        if number == 0 and begins and len(others) == 1 and isinstance(others[0], str):
            salt = others[0]
        elif others:
            return Trusted(min(number, count), salt, tuple(media[:known]))
    return Trusted(count, salt, tuple(media))


def _medium(told: Any, start: int, event: BlockStored) -> Medium | None:
    """One of a block whose first token is number ``start`` of the run; None: it is no medium."""
    if not (isinstance(told, list | tuple) and len(told) == 2):
        return None
    identifier, offset = told
    if not (isinstance(identifier, str) and identifier and isinstance(offset, int) and offset < event.block_size):
        return None
    if event.lora_name is not None:
        # Where adapters change what the model sees of an image, engines say whose it is; the keys' root says so, too.
        identifier = identifier.removeprefix(f"{event.lora_name}:")
    return Medium(start + offset, identifier)
