"""Prompt to token ids: chat template, tokenizer, and an estimate where neither is available."""

from gateway.tokens.tokenizer import ModelTokens

__all__ = ["ModelTokens"]
