"""The endpoint picker: what a gateway in front (Envoy) asks, by gRPC, where each of its requests shall go.

``stream.py`` is what lies between the two halves: a gRPC call, as who answers it sees it. Below it is the transport
(HTTP/2 and gRPC), which knows nothing of placement; above it is the picker, which knows nothing of frames.
"""
