"""Builds the tiny Idefics3 of the image tests: the tiny Llama's tokenizer and shape, behind a tower of random weights.

Runs under the engine venv's Python: ``python vision_model.py FOLDER``. vLLM's other small models of images need
torchvision. An image has 64 tokens, and three more around it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from model import POSITIONS, SEED, write_tokenizer

IMAGE_TOKENS = ["<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>"]
SIDE, PATCH, SCALE = 224, 14, 2  # pixels; pixels; patches that are one token, along a side


def write_model(folder: Path, vocabulary: int, image_id: int) -> None:
    """Save weights and the image processor."""
    import torch
    from transformers import (
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3ImageProcessorPil,
        Idefics3Processor,
        PreTrainedTokenizerFast,
    )

    torch.manual_seed(SEED)
    text = {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": POSITIONS,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 3,
        "tie_word_embeddings": False,
    }
    vision = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": SIDE,
        "patch_size": PATCH,
    }
    config = Idefics3Config(
        vision_config=vision,
        text_config=text,
        image_token_id=image_id,
        scale_factor=SCALE,
        pad_token_id=3,
        tie_word_embeddings=False,
    )
    model = Idefics3ForConditionalGeneration(config)
    with torch.no_grad():
        model.lm_head.weight.normal_(std=1.0)
    model.save_pretrained(folder)
    Idefics3Processor(
        image_processor=Idefics3ImageProcessorPil(
            size={"longest_edge": SIDE}, max_image_size={"longest_edge": SIDE}, do_image_splitting=False
        ),
        tokenizer=PreTrainedTokenizerFast.from_pretrained(folder),
        image_seq_len=(SIDE // PATCH // SCALE) ** 2,
    ).save_pretrained(folder)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    tokens = write_tokenizer(target, IMAGE_TOKENS)
    write_model(target, len(tokens), tokens.index("<image>"))
    print(target)
