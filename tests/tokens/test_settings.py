from __future__ import annotations

import pytest

from gateway.tokens.settings import ForwardSettings, MediaSettings, TokenSettings


def test_the_defaults_estimate() -> None:
    settings = TokenSettings()
    assert (settings.tokenizer, settings.content_format, settings.trust_remote_code) == (None, "auto", False)


def test_bytes_are_not_negative() -> None:
    with pytest.raises(ValueError, match="memory_bytes must be at least 0"):
        TokenSettings(memory_bytes=-1)


def test_a_template_without_a_tokenizer_would_be_of_no_use() -> None:
    with pytest.raises(ValueError, match="chat_template needs tokenizer"):
        TokenSettings(chat_template="template.jinja")


def test_media_are_asked_for_within_limits() -> None:
    with pytest.raises(ValueError, match="timeout must be above 0 seconds"):
        MediaSettings(timeout=0.0)


def test_ids_are_sent_only_where_there_are_any() -> None:
    assert not TokenSettings(tokenizer="folder").tokens.forward
    assert TokenSettings(tokenizer="folder", tokens=ForwardSettings(forward=True)).tokens.forward
    with pytest.raises(ValueError, match=r"tokens\.forward needs tokenizer"):
        TokenSettings(tokens=ForwardSettings(forward=True))
