"""Small real tokenizers of the shapes that models have, built with the library itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from simulator.corpus import CORPUS

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 splits words; Qwen's takes digits one by one."""
QWEN = LLAMA3.replace("{1,3}", "")

GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TAGS = ("<|im_start|>", "<|im_end|>", "<|eot|>", "<s>", "</s>", "[INST]", "[/INST]", "<|user|>", "<|end|>")

PIECES = (
    *TAGS,
    *(tag[:-1] for tag in TAGS),
    *(tag[1:] for tag in TAGS),
    *("<", "|>", "[", " ", "  ", "   \t", "\n", "\n\n", "\r\n", "\u00a0", "\u3000", "\u200d", "\u2581", "\u2581\u2581"),
    *(
        "\u0301",
        "\u0323\u0302",
        "e\u0301",
        "\u00e9",
        "\ufb01",
        "\uff21",
        "\u1100\u1161",
        "\U0001f600",
        "\U0001f525\ufe0f",
    ),
    *("hello", " world", "Word", "word", "ss\u00df", "12,345", "'s", "  x ", "\u4f60\u597d", "\x00", "a b" * 100),
)
"""Of texts: tokens whole and in part, blanks, what normalizers join, split or drop, letters of all kinds, length."""


def text_of(picks: bytes) -> str:
    """The pieces that the bytes pick: cheap to draw and to shrink; what is no pick is a letter of its own."""
    return "".join(PIECES[pick] if pick < len(PIECES) else chr(pick * 7) for pick in picks)


def raw(*contents: str, **flags: Any) -> list[AddedToken]:
    return [AddedToken(content, special=True, normalized=False, **flags) for content in contents]


def byte_level(pattern: str, normalizer: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=800, initial_alphabet=alphabet))
    return tokenizer


def sentencepiece(normalizer: Any, pre_tokenizer: Any) -> Tokenizer:
    """BPE with byte fallback and a blank before the first word."""
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    pieces = ["<unk>", *(f"<0x{number:02X}>" for number in range(256))]
    trained.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=800, special_tokens=pieces, initial_alphabet=["\u2581"])
    )
    trained.normalizer = normalizer
    trained.pre_tokenizer = pre_tokenizer
    return trained


def begin_and_end(tokenizer: Tokenizer, first: str, last: str | None = None) -> None:
    single = f"{first} $A" + (f" {last}" if last else "")
    ids = [(token, tokenizer.token_to_id(token)) for token in (first, last) if token]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair="$A $B", special_tokens=ids)


def with_tokens(tokenizer: Tokenizer, tokens: Sequence[AddedToken]) -> Tokenizer:
    tokenizer.add_tokens(list(tokens))
    return tokenizer


def llama3() -> Tokenizer:
    tokenizer = with_tokens(byte_level(LLAMA3), raw("<s>", "<|eot|>", "<|im_start|>", "<|im_end|>", "<|user|>"))
    begin_and_end(tokenizer, "<s>")
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), tokenizer.post_processor])
    return tokenizer


def qwen() -> Tokenizer:
    """NFC joins letters with marks that follow; two of its tokens are found in normalized text only."""
    tokenizer = with_tokens(byte_level(QWEN, normalizers.NFC()), raw("<|im_start|>", "<|im_end|>"))
    return with_tokens(tokenizer, [AddedToken("[INST]", normalized=True), AddedToken("<s>", special=True)])


def gpt2() -> Tokenizer:
    """The oldest form: the expression is the library's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=800, initial_alphabet=alphabet))
    return with_tokens(tokenizer, raw("<|im_start|>", "<|im_end|>"))


def gpt4o() -> Tokenizer:
    """Words begin anew with capitals, and keep what they are contracted with."""
    return with_tokens(byte_level(GPT4O), raw("<|im_start|>", "<|im_end|>", "<|user|>"))


def llama2() -> Tokenizer:
    """The older form: a blank is put before every piece."""
    normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer = with_tokens(sentencepiece(normalizer, None), raw("<s>", "</s>"))
    begin_and_end(tokenizer, "<s>")
    return tokenizer


def mistral() -> Tokenizer:
    """The newer form: a blank is put before the text's first piece only."""
    pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer = with_tokens(sentencepiece(None, pre_tokenizer), raw("<s>", "</s>", "[INST]", "[/INST]"))
    begin_and_end(tokenizer, "<s>", "</s>")
    return tokenizer


def phi3() -> Tokenizer:
    """Tokens that take the blanks to their right."""
    normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer = with_tokens(sentencepiece(normalizer, None), raw("<s>"))
    return with_tokens(tokenizer, raw("</s>", "<|user|>", "<|end|>", "<|im_end|>", rstrip=True))


def collapsing() -> Tokenizer:
    """Blanks become one, compatibility forms their letters, ends are stripped: piece by piece, between raw tokens."""
    normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(), normalizers.Lowercase()]
    )
    return with_tokens(byte_level(LLAMA3, normalizer), raw("<|im_start|>", "<|im_end|>"))


def merging() -> Tokenizer:
    """The same steps, and tokens that are looked for in what they leave: it merges across them."""
    normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    tokens = [AddedToken(content, special=True, normalized=True) for content in ("<|im_start|>", "<|im_end|>", " <s>")]
    return with_tokens(byte_level(LLAMA3, normalizer), tokens)


def taking_left() -> Tokenizer:
    """All its tokens take the blanks to their left."""
    return with_tokens(byte_level(LLAMA3), raw("<|im_start|>", "<|im_end|>", lstrip=True))


def mixed() -> Tokenizer:
    """Tokens to cut at among such as cannot be: one that takes blanks from both sides, one inside another."""
    tokenizer = with_tokens(byte_level(LLAMA3), raw("<|im_start|>", "<|end|>", "<s>", "</s>", "<s></s>", "  ", "\n\n"))
    return with_tokens(tokenizer, raw("<|im_end|>", lstrip=True, rstrip=True))


def single_words() -> Tokenizer:
    return with_tokens(byte_level(LLAMA3), [*raw("<|im_start|>"), *raw("word", single_word=True)])


def with_dropout() -> Tokenizer:
    tokenizer = llama3()
    tokenizer.model.dropout = 0.5
    return tokenizer


CUT: dict[str, Callable[[], Tokenizer]] = {
    "llama3": llama3,
    "qwen": qwen,
    "gpt2": gpt2,
    "gpt4o": gpt4o,
    "llama2": llama2,
    "mistral": mistral,
    "phi3": phi3,
    "collapsing": collapsing,
    "mixed": mixed,
}
WORDS = frozenset({"llama3", "qwen", "gpt2", "gpt4o", "mixed"})
"""Of these, such as are cut between words as well."""
UNCUT: dict[str, tuple[Callable[[], Tokenizer], str]] = {
    "merging": (merging, "tokens"),
    "taking-left": (taking_left, "tokens"),
    "single-words": (single_words, "single-word"),
    "dropout": (with_dropout, "model"),
}


@cache
def shape(name: str) -> Tokenizer:
    """By name, of either kind; built once."""
    return CUT[name]() if name in CUT else UNCUT[name][0]()
