"""``kvgate doctor``: whether what the gateway would know of each engine is true.

It runs beside a gateway or without one, and asks each engine itself: a few GETs, three tokenizations, and for each
data-parallel rank one completion of one token (a second one if the first is not announced), whose unique text must come
back as a KV event. ``run`` asks all engines at once, ``examine`` one, ``show`` says what came of it.
"""
