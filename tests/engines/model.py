"""Builds the tiny Llama that the engine tests serve: random weights, a byte-level BPE tokenizer, a chat template.

Runs under the engine venv's Python (the gateway's own has no torch): ``python model.py FOLDER``. The same source gives
the same tokenizer and weights, so a folder can be kept under a name made from this file's hash.

KV memory: 2 (keys, values) x 2 layers x 2 heads x 64 x 4 bytes = 2048 bytes a token.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

SEED = 20_26
POSITIONS = 8192
TURN_TOKENS = ["<|begin|>", "<|start|>", "<|end|>", "<|pad|>"]
TOOL_TOKENS = ["<tool_call>", "</tool_call>"]
VOCABULARY = 380
"""256 bytes, six special tokens and about 120 merges: enough merges that a cut in the text changes its tokens."""

CORPUS = [
    "You are a careful assistant. Answer the question of the user in one short sentence.",
    "What is the weather in Paris today? The weather in Paris is sunny, with a light wind from the west.",
    "The quick brown fox jumps over the lazy dog. The five boxing wizards jump quickly.",
    '{"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "parameters": '
    '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}',
    "def add(left: int, right: int) -> int:\n    return left + right\n",
    "system user assistant tool developer 0123456789",
]

# Every turn prints what it got as it got it, so that any difference in how messages are prepared shows in the ids.
TEMPLATE = """\
{{- '<|begin|>' }}
{%- if tools %}
{{- '<|start|>system\\n' }}
{%- if messages and messages[0]['role'] == 'system' %}{{- messages[0]['content'] + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n' }}
{%- for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{%- endfor %}
{{- '<|end|>\\n' }}
{%- elif messages and messages[0]['role'] == 'system' %}
{{- '<|start|>system\\n' + messages[0]['content'] + '<|end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message['role'] == 'system' and loop.first %}
{%- elif message['role'] == 'assistant' %}
{{- '<|start|>assistant' }}{%- if message.name %}{{- ' ' + message.name }}{%- endif %}{{- '\\n' }}
{%- if message.reasoning_content and not drop_reasoning %}{{- '<think>' + message.reasoning_content + '</think>' }}
{%- endif %}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>' }}{{- {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
{{- '</tool_call>' }}
{%- endfor %}
{{- '<|end|>\\n' }}
{%- elif message['role'] == 'tool' %}
{{- '<|start|>tool' }}{%- if message.tool_call_id %}{{- ' ' + message.tool_call_id }}{%- endif %}
{{- '\\n' + message.content + '<|end|>\\n' }}
{%- else %}
{{- '<|start|>' + message['role'] }}{%- if message.name %}{{- ' ' + message.name }}{%- endif %}
{{- '\\n' + message.content + '<|end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if documents %}{{- '<|start|>documents\\n' + (documents | tojson) + '<|end|>\\n' }}{%- endif %}
{%- if add_generation_prompt %}
{{- '<|start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think></think>' }}{%- endif %}
{%- if reasoning_effort %}{{- '[effort ' + reasoning_effort + ']' }}{%- endif %}
{%- endif %}
"""


def write_tokenizer(folder: Path, more: Sequence[str] = ()) -> list[str]:
    """Train and save the tokenizer with its template; return the text of each of its tokens. ``more``: special ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[*TURN_TOKENS, *TOOL_TOKENS, *more],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    # A completion's text gets a first token that a rendered chat must not get twice.
    bpe.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", bpe.token_to_id("<|begin|>"))]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|begin|>",
        eos_token="<|end|>",
        pad_token="<|pad|>",
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return [tokenizer.decode([token]) for token in range(len(tokenizer))]


def write_weights(folder: Path, tokens: list[str]) -> None:
    """Save a model of random weights whose answers are made of whole letters.

    Random output rows would give mostly bytes that are no text, which an engine holds back until they are: streams
    would have no events. So only tokens of plain letters have an output row, large enough for the best one to stand
    far above the second: answers never end by themselves, and no rounding changes them.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=POSITIONS,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=3,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    speaks = torch.tensor([token.isascii() and token.strip().isalpha() for token in tokens])
    with torch.no_grad():
        model.lm_head.weight.normal_(std=1.0).mul_(speaks.unsqueeze(1))
    model.save_pretrained(folder)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write_weights(target, write_tokenizer(target))
    print(target)
