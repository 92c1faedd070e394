"""Prompt to token ids: chat template, tokenizer, and an estimate where neither can be had."""

from gateway.tokens.tokenizer import ModelTokens

__all__ = ["ModelTokens"]
