"""The error of all engines for a checkpoint whose outputs are wrong."""


class BrokenModel(Exception):
    """A checkpoint whose outputs are wrong: not finite, not of the required length, or not reproducible."""
