"""``kvgate demo``: runs the same chat traffic through the gateway twice, with round robin and with the default profile.

Only the GPUs are simulated. Engines, gateway and client are processes that talk HTTP over sockets; the gateway reads
its configuration from a file and the engines' KV events from ZMQ. Begin reading at ``comparison.py``.
"""
