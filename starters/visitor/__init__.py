"""The held-out suite `python -m starters visitor`: what somebody types and draws who has not seen any training data.

Its pictures, word lists, sentences and grammars are its own. Nothing here is imported by a training or imports one.
"""
