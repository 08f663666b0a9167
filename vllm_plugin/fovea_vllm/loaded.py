"""Whether `plugin.register` has run in this process; without it, requests would be answered as if uncalibrated."""

is_complete = False
