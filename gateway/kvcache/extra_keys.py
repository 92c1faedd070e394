"""What else than tokens is in a block's hash, and how far that can be told from an event. Pure."""

from __future__ import annotations

from gateway.kvcache.events import BlockStored


def trusted(event: BlockStored) -> tuple[int, str | None]:
    """How many leading blocks of a run are told by tokens, adapter and salt alone; and the salt.

    A block's extra keys are the adapter's name, media as lists, the salt (a prompt's first block only), a digest of
    embeddings, in this order and untagged. Tokens do not tell what media are, nor what is behind them. Engines before
    0.13 tell an adapter by a number of their own.
    """
    if event.lora_id is not None and event.lora_name is None:
        return 0, None
    if not event.extra_keys or not any(event.extra_keys):
        return len(event.block_hashes), None
    salt = None
    for number, extra in enumerate(event.extra_keys):
        others = extra[1:] if extra and extra[0] == event.lora_name else extra
        if not others:
            continue
        first = number == 0 and event.parent_block_hash is None
        if not (first and len(others) == 1 and isinstance(others[0], str)):
            return min(number, len(event.block_hashes)), salt
        salt = others[0]
    return len(event.block_hashes), salt
