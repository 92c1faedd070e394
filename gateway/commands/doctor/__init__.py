"""``kvgate doctor``: checks that what the gateway would know of each engine is true.

It runs beside a gateway or without one, and asks each engine itself: a few GETs, three tokenizations, and for each
data-parallel rank one completion of one token, whose unique text must come back as a KV event (a second completion if
the first is not announced). ``diagnose`` examines all engines at the same time, ``examine`` one, and ``tables`` prints
the reports.
"""
