"""What a request costs in the gateway, beside the Rust routers, a plain proxy and the floor: ``make bench``.

All rows run at the same time in front of the same mock engines; ``wrk`` asks one after the other, round by round, so
that what the machine does meanwhile happens to all of them. What counts is the CPU of a row's processes for each
answer, and ratios between rows of one run. One gateway is there twice: what its two rows differ by is the noise.

Who does what: ``plan`` names columns and targets, ``builds`` the gateways that are measured; ``prompts`` makes what is
asked, ``drive.lua`` asks it from within wrk; ``engines`` and ``events`` are the mock engines, ``floor`` and ``plain``
two proxies to compare with, ``peers`` the Rust routers; ``rows`` names and starts them; ``measure`` runs the rounds;
``judge`` and ``show`` make the table, and ``page`` writes it into the documentation. ``steps`` says where a gateway's
CPU goes (``steps_inside``, with ``clocks``); ``lag`` and ``memory`` measure the gateway alone.
"""
