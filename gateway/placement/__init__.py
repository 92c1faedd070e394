"""Where a request goes, what is booked for it there, and what is learned from it: one code for all who place requests.

``decide`` matches and schedules, ``book`` enters the work, ``learn`` takes what an answer showed. The proxy, the
explanation and the replay call exactly these: what is explained and replayed is what is served. Pure: no I/O, no await.
"""
