"""kvgate: one OpenAI endpoint in front of a fleet of vLLM engines.

Begin reading at ``proxy/director.py``: the way of a request, verb by verb. The words:

model       what a client names: name, aliases, adapters, the name the engines serve it under; owns one cache index
engine      one URL: its connections, health, version, scrape, event streams
endpoint    what a request is placed on: an engine, or one data-parallel rank of it; has a role, labels, a ledger,
            a cost model and a small integer *slot*
fleet       all engines and endpoints; it alone creates and drops them and hands out slots
block key   our own chained hash of a block's tokens and everything before it
engine hash an engine's own name for a block; opaque
match       the leading tokens of a prompt that an endpoint holds, by tier, with how sure we are
expected hit  the match cut to that engine's whole blocks and to prompt length - 1: what ``cached_tokens`` should say
ledger      our own exact account of the work we have sent to each endpoint and not yet got back
profile     filters in order, weighted scorers, one picker
handler     runs profiles for a request and makes the plan of their results
plan        which endpoint serves which leg
leg         one upstream request
commit      the moment an answer is the client's; until then nothing, headers included, has gone to the client
relay       moving an answer's bytes from the engine to the client
settle      after a request: give back its reservation, learn from what happened
"""

__version__ = "0.1.0"
