"""Connections to a Valkey or Redis server (6 or later): clients for one task, and the link that is kept.

What is known of the client's package, redis-py, is in this room. It does not know what is kept on the server.
"""
