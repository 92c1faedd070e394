"""A gRPC server over HTTP/2 (RFC 9113) for few peers that are gateways, with many short calls on kept connections.

It serves calls whose messages are handled at once: no task, no wait and no copy between the socket and the handler.
From the socket up: ``frames``, ``head_reader`` (HPACK), ``connection``, ``call``; and down: ``call``, ``sending``. What
a peer may do is in ``limits``. ``server`` is all connections of a listener.
"""
