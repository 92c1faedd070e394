"""The words between a parent and its workers."""

from __future__ import annotations

BEAT = "beat"
"""The worker's loop runs."""

READY = "ready"
"""The worker could serve: its tokenizers are loaded. A hyphen and the digest of its configuration's text follow."""

SERVING = "serving"
"""The worker accepts connections."""

GO = "go"
"""To the worker: accept connections. With ``AGAIN`` behind a hyphen: read before what another service has left in
files."""

AGAIN = "again"

COVER, UNCOVER = "cover", "uncover"
"""To the worker, with another one's number behind a hyphen: accept that one's clients, too, as long as it has no
process that does; and no more."""

LEAVING = "leaving"
"""The worker accepts no more, though its parent has not said so: somebody has sent it a signal."""

PAUSE, PAUSED, RESUME = "pause", "paused", "resume"
"""To the worker: accept no more, and save what is kept in files, since another service is about to go on with both; its
answer; and to the worker: go on, the other service has failed."""

STOP = "stop"
"""To the worker: accept no more, let running answers end, and end. Behind hyphens may follow:"""

PATIENT = "patient"
"""Be not ready for new clients, but go on accepting: another ``stop`` follows, which says the rest."""

KEPT = "kept"
"""Others have the socket as well: whoever waits there waits for them."""

TAKEN = "taken"
"""Another service serves on the same port."""

HURRY = "hurry"
"""To the worker: end now."""

OTHER_VERSION = 3
"""The exit status of a worker that is of another version than its parent, since another kvgate was installed. It has
not touched anything that is shared: that may have another form."""

EVERY = 0.25
"""Seconds between two beats."""

HUNG = 2.0
"""Seconds without a beat after which a worker is taken for hung, and is killed. Its streams have then stood still for
longer than any step of the loop takes, and its loads, by which the others place, have not changed."""

LOADING = 60.0
"""The same before it serves, and while it prepares a reload: a large tokenizer's library holds the interpreter's lock
for seconds."""
