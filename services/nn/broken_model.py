"""What every engine raises of a checkpoint that computes wrongly."""


class BrokenModel(Exception):
    """A checkpoint whose computations come out wrong: not numbers, not of the length that they must have, or not the
    same twice."""
