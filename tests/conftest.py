"""What every test starts from."""

from __future__ import annotations

import signal

from hypothesis import settings

# A shell that runs the suite in the background has it ignore Ctrl-C, and every process that a test starts would
# inherit that: tests of interrupts then wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is the machine's business, and no test's.
settings.register_profile("kvgate", deadline=None)
settings.load_profile("kvgate")
