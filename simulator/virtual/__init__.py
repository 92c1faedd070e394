"""One engine in virtual time, event by event: what ``simulator.engine`` does, as fast as a replay needs it.

Prompts are ids of blocks, not tokens, and the steps in which nothing but decoding happens are taken in one leap.
"""
