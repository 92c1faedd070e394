"""What else than tokens is in a block's hash, and how much of it an event reports. Pure.

Source: ``generate_block_hash_extra_keys`` and ``to_event_extra_keys`` in vLLM 0.32, ``vllm/v1/core/kv_cache_utils.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gateway.core.prompt import MediaItem
from gateway.kvcache.index.block_events import BlockStored


class ExtraKeys(NamedTuple):
    """``blocks``: how many leading blocks of a run are understood: tokens, adapter, salt, media. ``media``: those that
    begin in these blocks, in order, with offsets from the run's first token."""

    blocks: int
    salt: str | None = None
    media: tuple[MediaItem, ...] = ()


def parse_extra_keys(event: BlockStored) -> ExtraKeys:
    """What ``event`` reports of its blocks beside tokens.

    A block's extra keys are the adapter's name, a pair for each medium that it covers a part of (its identifier, and
    its first token counted from the block's), the salt (in a prompt's first block only), and a digest of embeddings, in
    this order and untagged. The first block with anything else, or that does not fit the blocks before it, ends what is
    understood. Engines before 0.13 report an adapter by a number of their own.
    """
    if event.lora_id is not None and event.lora_name is None:
        return ExtraKeys(0)
    count = len(event.block_hashes)
    if not event.extra_keys or not any(event.extra_keys):
        return ExtraKeys(count)
    salt = None
    media: list[MediaItem] = []
    last: MediaItem | None = None  # in the block before, or begun in this one
    begins = event.parent_block_hash is None
    for number, extra in enumerate(event.extra_keys):
        others = extra[1:] if extra and extra[0] == event.lora_name else extra
        if not others:
            continue
        start = number * event.block_size
        known = len(media)
        while others and (medium := _media_item(others[0], start, event)) is not None:
            if medium.offset >= start and (last is None or medium.offset > last.offset):
                media.append(medium)
            elif medium != last and (number or begins or last is not None):
                break  # it began earlier, and that was not reported
            last = medium
            others = others[1:]
        if number == 0 and begins and len(others) == 1 and isinstance(others[0], str):
            salt = others[0]
        elif others:
            return ExtraKeys(min(number, count), salt, tuple(media[:known]))
    return ExtraKeys(count, salt, tuple(media))


def _media_item(value: Any, start: int, event: BlockStored) -> MediaItem | None:
    """A medium in the block whose first token is number ``start`` of the run; None: ``value`` is no medium."""
    if not (isinstance(value, list | tuple) and len(value) == 2):
        return None
    identifier, offset = value
    if not (isinstance(identifier, str) and identifier and isinstance(offset, int) and offset < event.block_size):
        return None
    if event.lora_name is not None:
        # Engines prefix the adapter's name where it changes how images are encoded; the keys' root has it already.
        identifier = identifier.removeprefix(f"{event.lora_name}:")
    return MediaItem(start + offset, identifier)
