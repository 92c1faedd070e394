"""kvgate: one OpenAI endpoint in front of a fleet of vLLM engines.

Begin reading at ``proxy/serving/director.py``: it handles a request, step by step. These are the terms:

model         what a client names in its request. It has a name, aliases, adapters, the name under which the engines
              serve it, and a KV index of its own
engine        one URL, with its connections, health, version, scrape and event streams
endpoint      what a request is placed on: an engine, or one data-parallel rank of an engine. It has a role, labels, a
              ledger, a cost model and a small integer, its *slot*
fleet         all engines and endpoints. Only the fleet creates and removes them, and assigns slots
unit          the tokens of one block key: the engines' block size, or a part of it
tier          where an engine keeps a block: GPU, CPU or storage
block key     kvgate's own chained hash of a block: it covers the block's tokens and all tokens before them
engine hash   an engine's own hash of a block. It is opaque to kvgate
match         the leading tokens of a prompt that an endpoint holds, by tier, and how certain that is
expected hit  the match, cut to whole blocks of that engine and to the prompt's length - 1. The engine's
              ``cached_tokens`` should be equal to it
ledger        kvgate's exact account of the work that it has sent to each endpoint and that has not ended yet
booking       what a ledger has of one leg: its tokens to compute, its KV, its output so far. To *reserve* is to make
              one
profile       filters in order, weighted scorers, and one picker
handler       runs profiles for a request and makes a plan of their results
plan          which endpoint serves which leg: one leg of each kind at most, and the decode leg last
attempt       one placement of a request, with its legs. A request may have several, one after the other
leg           one upstream request, by its kind: the prefill or the decode of a request
carrier       the function that sends the legs of a plan, by their kinds
hand-over     the prefill leg, the transfer of its KV to the decode engine, and the decode leg that uses it
answer        an engine's HTTP response; a *response* is an object of the Responses API
commit        the moment from which an answer belongs to the client. Before it, the client has received nothing, not
              even headers
held answer   an engine's error answer, kept until another endpoint answers. The client gets it if none does
death         a failed leg that may have ended its engine. After its first death a request is sent once more at most
relay         passes an answer's bytes from the engine to the client
settle        ends a request: it releases the request's reservation and learns from the result
"""

__version__ = "0.1.0"
