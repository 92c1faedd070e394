"""Replays a workload through the gateway's real scheduler, ledger, cost model and index, in virtual time and against
the simulator's model of an engine. Nothing here opens a socket or asks a real clock.
"""
