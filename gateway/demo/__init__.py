"""``kvgate demo``: the same chat traffic through the gateway twice, by round robin and by the default profile.

Everything is real but the GPUs: engines, gateway and client are processes that speak HTTP over sockets, the gateway
reads its configuration from a file and the engines' KV events from ZMQ. ``run.py`` is where to begin reading.
"""
