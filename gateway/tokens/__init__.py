"""Prompt to token ids: chat template, tokenizer, and an estimate where neither is available."""
