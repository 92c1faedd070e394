"""Reads a tokenizer from its folder without ``transformers``, whose import takes longer than all else of a start.

Only where ``file_rules`` knows that ``AutoTokenizer`` would make exactly this of the files: tokenizer.json as it is. Of
every other folder ``read_folder`` returns None, and ``transformers`` is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from gateway.tokens.file_rules import Folder, NotKnown, examine


class FileTokenizer:
    """What kvgate uses of a ``transformers`` tokenizer, by the same names. ``special_tokens_map``: by name, such as
    ``bos_token``. ``chat_template``: one, several by name, or None."""

    def __init__(self, backend: Tokenizer, folder: Folder) -> None:
        self.backend_tokenizer = backend
        self.split_special_tokens = folder.split_special_tokens
        self.special_tokens_map: Mapping[str, str] = folder.named
        self.all_special_tokens: Sequence[str] = list(dict.fromkeys((*folder.named.values(), *folder.extra)))
        self.chat_template = folder.chat_template

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, list[int]]:
        (one,) = self.backend_tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return {"input_ids": one.ids}

    def get_vocab(self) -> dict[str, int]:
        vocabulary: dict[str, int] = self.backend_tokenizer.get_vocab()
        return vocabulary

    def get_chat_template(self, name: None, tools: Sequence[Any] | None) -> str:
        """The template for chats with ``tools``, or without (None). Raises ValueError if there is none.

        Source: ``get_chat_template`` of ``transformers`` 5.23 (``tokenization_utils_base.py``).
        """
        template = self.chat_template
        if isinstance(template, dict):
            template = template.get("tool_use" if tools is not None and "tool_use" in template else "default")
        if template is None:
            raise ValueError("there is no chat template")
        return template


def read_folder(path: str) -> FileTokenizer | None:
    """The tokenizer of the folder ``path``; None: it is not known what ``transformers`` would make of it."""
    file = Path(path, "tokenizer.json")
    try:
        folder = examine(Path(path))
        backend = Tokenizer.from_file(str(file))
        folder.check_ids(backend.get_vocab_size(with_added_tokens=False))
    except (KeyboardInterrupt, SystemExit):
        raise
    except NotKnown:
        return None
    except BaseException:  # the library panics, which is no Exception; ``transformers`` says what is wrong
        return None
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = folder.split_special_tokens
    if backend.post_processor is None:  # as ``update_post_processor`` of ``TokenizersBackend``
        backend.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    return FileTokenizer(backend, folder)
