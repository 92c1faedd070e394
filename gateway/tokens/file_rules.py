"""Of which folders it is known that ``transformers`` makes no more of them than tokenizer.json says.

Its ``AutoTokenizer`` reads several files and decides by the model's type, the name of a class and some 40 keys; some
classes build another tokenizer from the vocabulary alone. So this is a list of what is known to change nothing, and
whatever is not in it is not known: a key, a type, a class, a special token that tokenizer.json lacks.

Source: ``AutoTokenizer.from_pretrained`` (``models/auto/tokenization_auto.py``), ``_from_pretrained``
(``tokenization_utils_base.py``), ``TokenizersBackend`` (``tokenization_utils_tokenizers.py``) and ``Qwen2Tokenizer`` of
``transformers`` 5.23. ``tests/tokens/test_file_rules.py`` asks the installed version about each type and class.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gateway.tokens.hub import TEMPLATES

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The special tokens of every tokenizer, in the library's order."""

PLAIN_CLASSES = frozenset({"PreTrainedTokenizerFast", "TokenizersBackend"})
"""Classes that take tokenizer.json as it is."""

LLAMA_CLASSES = frozenset({"LlamaTokenizer", "LlamaTokenizerFast"})
"""The same where tokenizer.json has a step for bytes: the class itself would build another tokenizer."""

QWEN_CLASSES = frozenset({"Qwen2Tokenizer", "Qwen2TokenizerFast"})
"""This one builds a tokenizer from the vocabulary; Qwen's own files say the same that it builds."""

QWEN_TYPES = frozenset(
    {
        *("", "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl"),
        *("qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe"),
    }
)
"""Types (``model_type`` of config.json; empty: none) for which ``QWEN_CLASSES`` are used as they are named."""

ALWAYS_QWEN = frozenset({"qwen2"})
"""Types for which that class is used, whatever is named."""

TYPES = QWEN_TYPES | {
    *("llama", "llama4", "llama4_text", "deepseek_v2", "deepseek_v3", "glm", "glm4", "glm4_moe", "gpt_oss"),
    *("granite", "granitemoe", "granitemoehybrid", "olmo2", "olmo3", "olmoe", "gpt_neox", "phi", "phi3", "phimoe"),
    *("smollm3", "exaone4", "minimax_m2", "nemotron", "nemotron_h", "hunyuan_v1_dense", "hunyuan_v1_moe", "seed_oss"),
    *("starcoder2", "falcon", "falcon_h1", "lfm2", "dots1", "stablelm", "mamba2", "bamba", "jamba", "ernie4_5"),
    "ernie4_5_moe",
}
"""Types whose named class is used. Not Mistral's, whose class depends on what is installed."""

READ = frozenset(
    {
        *(*NAMED, "tokenizer_class", "chat_template", "added_tokens_decoder", "split_special_tokens"),
        *("extra_special_tokens", "additional_special_tokens", "add_prefix_space"),
    }
)
"""Keys of tokenizer_config.json that are read here."""

WITHOUT_EFFECT = frozenset(
    {
        *("add_bos_token", "add_eos_token"),  # dropped where there is a tokenizer.json, whose last step says it
        *("clean_up_tokenization_spaces", "errors", "spaces_between_special_tokens"),  # of decoding
        *("model_max_length", "model_input_names", "padding_side", "truncation_side", "max_length"),
        *("legacy", "sp_model_kwargs", "use_default_system_prompt", "processor_class", "name_or_path", "backend"),
        *("is_local", "local_files_only", "special_tokens_map_file", "use_fast", "response_schema"),
    }
)
"""Keys that change no ids where tokenizer.json is used as it is."""

OFF = frozenset({"do_lower_case", "remove_space", "keep_accents", "strip_accents"})
"""Keys that change nothing while they are off."""

OTHER_FILES = ("added_tokens.json", TEMPLATES)
"""Files that may add tokens or templates. They are rare, and not read here."""

OTHERWISE = (
    *("deepseek-ai/deepseek-r1-distill-llama-*", "deepseek-ai/deepseek-coder-*", "allenai/dolma2-tokenizer"),
    *("google/umt5-small", "naver-clova-ix/donut-*", "salesforce/blip2-opt-*", "salesforce/blip2-flan-t5-*"),
    *("salesforce/instructblip-flan-t5-*", "stepfun-ai/step-3.7-*"),
)
"""Names for which the library uses another class than their files say, whatever is in these."""

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

QWEN_DEFAULTS = {"unk_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
"""What ``Qwen2Tokenizer`` takes for special tokens that are not in the files."""


class NotKnown(Exception):
    """It is not known what ``transformers`` would make of a folder."""


class AddedToken(msgspec.Struct, frozen=True):
    """An entry of ``added_tokens`` in tokenizer.json, or of ``added_tokens_decoder`` in tokenizer_config.json."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False
    id: int = -1


class _Model(msgspec.Struct, frozen=True):
    """Of a BPE model, without its vocabulary."""

    type: str | None = None
    dropout: float | None = None
    unk_token: str | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    fuse_unk: bool = False
    byte_fallback: bool = False
    ignore_merges: bool = False


class _File(msgspec.Struct, frozen=True):
    """tokenizer.json, as far as it is looked at."""

    added_tokens: tuple[AddedToken, ...]
    model: _Model
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Folder:
    """What a folder's files say beside tokenizer.json. ``named``: special tokens by name; ``extra``: others.
    ``built``: the library builds the tokenizer anew, and gives each of ``added`` the next free id."""

    named: Mapping[str, str]
    extra: tuple[str, ...]
    added: tuple[AddedToken, ...]
    chat_template: str | dict[str, str] | None
    split_special_tokens: bool
    built: bool

    def check_ids(self, size: int) -> None:
        """``size``: of the vocabulary without added tokens. Raises NotKnown if the library gives tokens other ids than
        tokenizer.json."""
        if self.built and sorted(token.id for token in self.added) != list(range(size, size + len(self.added))):
            raise NotKnown


def is_otherwise(name: str) -> bool:
    """Whether the files of the folder or repository ``name`` do not decide."""
    return any(fnmatch.fnmatch(name.lower(), pattern) for pattern in OTHERWISE)


def examine(folder: Path) -> Folder:
    """Raises NotKnown, OSError and msgspec.MsgspecError."""
    _require(all(not (folder / name).exists() for name in OTHER_FILES))
    config = msgspec.json.decode((folder / "tokenizer_config.json").read_bytes(), type=dict[str, Any])
    _require(config.keys() <= READ | WITHOUT_EFFECT | OFF | {key for key in config if _is_own_token(key, config[key])})
    _require(not any(config.get(key) for key in OFF))
    data = (folder / "tokenizer.json").read_bytes()
    file = msgspec.json.decode(data, type=_File)
    built = _is_built(_type_of(folder), config.get("tokenizer_class"), b'"ByteLevel"' in data)
    prefix = config.get("add_prefix_space")
    _require(prefix in (None, False) if built else prefix is None or prefix in _prefixes(file.pre_tokenizer))
    added = {token.content: token for token in file.added_tokens}
    if "added_tokens_decoder" in config:
        entries = config["added_tokens_decoder"]
        # Pairs, as the same id may be written in two ways.
        said = [msgspec.convert({**entry, "id": int(number)}, AddedToken) for number, entry in entries.items()]
        _require(sorted(said, key=_id) == sorted(file.added_tokens, key=_id))
    else:
        _check_map(folder / "special_tokens_map.json", config)
    named, extra = _special_tokens(config, built)
    _require(added.keys() >= {*named.values(), *extra})
    if built:
        _require(_says_qwen(file))
        again = (added[token] for token in (*named.values(), *extra))  # which that class adds once more, as plain ones
        _require(
            all((t.special, t.normalized, t.single_word, t.lstrip, t.rstrip) == (True, *[False] * 4) for t in again)
        )
    split = config.get("split_special_tokens", False)
    _require(isinstance(split, bool))
    return Folder(named, extra, file.added_tokens, _template(folder, config), split, built)


def _require(known: bool) -> None:
    if not known:
        raise NotKnown


def _id(token: AddedToken) -> int:
    return token.id


def _is_own_token(key: str, value: Any) -> bool:
    """Whether the library takes this key for a special token of the model's own, such as ``image_token``."""
    return key.endswith("_token") and key not in (*NAMED, "add_bos_token", "add_eos_token") and isinstance(value, str)


def _type_of(folder: Path) -> str:
    path = folder / "config.json"
    if not path.exists():
        return ""
    config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    kind = config.get("model_type", "")
    _require(isinstance(kind, str))
    return str(kind)


def _is_built(kind: str, named: Any, has_byte_level: bool) -> bool:
    """Whether the library builds a Qwen tokenizer; else it takes tokenizer.json as it is. Raises NotKnown."""
    _require(isinstance(named, str) and kind in TYPES)
    if named in QWEN_CLASSES:
        _require(kind in QWEN_TYPES)
        return True
    _require(named in PLAIN_CLASSES or (named in LLAMA_CLASSES and has_byte_level))
    return kind in ALWAYS_QWEN


def _prefixes(step: Mapping[str, Any] | None) -> set[bool]:
    """Each ``add_prefix_space`` of a pre-tokenizer's steps."""
    if step is None:
        return set()
    inner = step.get("pretokenizers", ())
    return {bool(step["add_prefix_space"])} if "add_prefix_space" in step else set().union(*map(_prefixes, inner))


def _special_tokens(config: Mapping[str, Any], built: bool) -> tuple[dict[str, str], tuple[str, ...]]:
    """By name, in the library's order, and the others."""
    given = {name: _content(config[name]) for name in NAMED if config.get(name) is not None}
    if built:
        # Only for a key that is missing: null sets none.
        given |= {name: token for name, token in QWEN_DEFAULTS.items() if name not in config}
    named = {name: given[name] for name in NAMED if name in given}
    named |= {key: value for key, value in config.items() if _is_own_token(key, value)}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or ()
    if isinstance(extra, dict):
        _require(not named.keys() & extra.keys())
        return named | {str(key): _content(value) for key, value in extra.items()}, ()
    _require(isinstance(extra, list | tuple))
    return named, tuple(map(_content, extra))


def _content(token: Any) -> str:
    """Of a special token: its text, or an object that the library marks as a token."""
    if isinstance(token, dict) and token.get("__type") == "AddedToken":
        token = token.get("content")
    _require(isinstance(token, str))
    return str(token)


def _check_map(path: Path, config: Mapping[str, Any]) -> None:
    """An older file with the special tokens once more: it must say the same."""
    if not path.exists():
        return
    for name, value in msgspec.json.decode(path.read_bytes(), type=dict[str, Any]).items():
        _require(name in NAMED and config.get(name) is not None)
        text = value.get("content") if isinstance(value, dict) else value
        _require(text == _content(config[name]))


def _says_qwen(file: _File) -> bool:
    """Whether tokenizer.json says what ``Qwen2Tokenizer`` builds."""
    split, *rest = _steps(file.pre_tokenizer)
    pattern = {"type": "Split", "pattern": {"Regex": QWEN_PATTERN}, "behavior": "Isolated", "invert": False}
    bytewise = [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]
    # Where tokens begin and end in the text is of no interest.
    rest = [{name: value for name, value in step.items() if name != "trim_offsets"} for step in rest]
    model = file.model
    affixes = model.continuing_subword_prefix or model.end_of_word_suffix or model.unk_token or model.dropout
    flags = model.fuse_unk or model.byte_fallback or model.ignore_merges
    plain = model.type == "BPE" and not affixes and not flags
    return plain and file.normalizer == {"type": "NFC"} and split == pattern and rest == bytewise


def _steps(step: Mapping[str, Any] | None) -> Iterable[Mapping[str, Any]]:
    if step is None or step.get("type") != "Sequence":
        raise NotKnown
    found: list[Mapping[str, Any]] = step["pretokenizers"]
    return found or [{}]


def _template(folder: Path, config: Mapping[str, Any]) -> str | dict[str, str] | None:
    """The chat template, or several by name. A file of its own goes first."""
    path = folder / "chat_template.jinja"
    if path.exists():
        with open(path, encoding="utf-8") as file:  # the library reads it so, too: line ends become \n
            return file.read()
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {one["name"]: one["template"] for one in template}
        _require(all(isinstance(text, str) for text in template.values()))
    _require(template is None or isinstance(template, str | dict))
    return template
