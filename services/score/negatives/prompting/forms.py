"""Types of hard negatives that a language model writes: SugarCrepe's taxonomy (appendix C.3.1)."""

from collections.abc import Mapping
from typing import Literal, get_args

# The form, and the category of the concept that is replaced, swapped or added.
WrittenKind = Literal["replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att", "add_obj", "add_att"]
WRITTEN_KINDS: tuple[WrittenKind, ...] = get_args(WrittenKind)

Form = Literal["replace", "swap", "add"]

# Why an answer makes no hard negative.
Problem = Literal[
    "truncated",  # the endpoint's limit of tokens ended it
    "unreadable",  # not in the form that was asked for
    "nothing_to_change",  # the model finds no concept of this category, or no two to swap
    "not_in_caption",  # none of its concepts occurs in the caption
    "same_concept",  # the new concept is the old one
    "unchanged",  # the caption itself, but for case, marks and articles
    "too_long",
    "wrong_article",  # `a` before a vowel's sound, or `an` before another
    "not_a_replacement",  # not one phrase replaced by another and the rest unchanged
    "not_a_swap",  # not two phrases exchanged and the rest unchanged
    "not_an_addition",  # not the caption's own words with others between them
    "another_place",  # a replacement, but not of the chosen concept
]
PROBLEMS: tuple[Problem, ...] = get_args(Problem)


FORM_OF: Mapping[WrittenKind, Form] = {
    **{"replace_obj": "replace", "replace_att": "replace", "replace_rel": "replace"},
    **{"swap_obj": "swap", "swap_att": "swap"},
    **{"add_obj": "add", "add_att": "add"},
}
