"""Pairs and blind models, as in the tests of refinement."""

from tests.curate.refinement.conftest import folder

__all__ = ["folder"]
