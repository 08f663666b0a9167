"""The error of every engine for a checkpoint that computes wrongly."""


class BrokenModel(Exception):
    """A checkpoint whose outputs are wrong: not finite, not of the required length, or not the same twice."""
