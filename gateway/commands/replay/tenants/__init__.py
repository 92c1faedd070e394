"""``kvgate replay --tenants``: scenes of several tenants on one fleet, and the ways to let their requests wait that are
compared on them.
"""
