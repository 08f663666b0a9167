"""The words of a caption that name facts while the text tower learns to read."""

from pathlib import Path

import pytest
import torch

from starters.score.data.claimed_pictures import said
from starters.score.data.claims import Claim, Noun
from starters.score.training.scene_clip import create_scene_clip
from starters.score.training.word_labels import WordLabels, WordNaming

RED, BLUE = Noun(color="red", shape="circle"), Noun(color="blue", shape="square")


@pytest.mark.parametrize(
    ("claim", "caption", "words"),
    [
        (Claim(RED), "a red circle", {"circle"}),
        (Claim(RED), "the circle is red", {"red"}),
        (Claim(RED, BLUE), "a red circle and a blue square", {"circle", "square"}),
        (Claim(RED, BLUE, "left"), "a red circle left of a blue square", {"circle", "left", "blue", "square"}),
        (Claim(RED, BLUE, "above"), "top: red circle, bottom: blue square", {"red", "circle", "blue", "square"}),
        (Claim(Noun(shape="circle"), Noun(shape="square")), "a circle and a square", set()),
        (Claim(RED, Noun(color="red", shape="square")), "a red circle and a red square", set()),
    ],
)
def test_the_words_that_complete_what_is_said_of_a_thing_name_it(
    tmp_path: Path, claim: Claim, caption: str, words: set[str]
) -> None:
    tokenizer = create_scene_clip(tmp_path, width=32, layers=1).tokenizer
    input_ids, codes = tokenizer([caption]), torch.tensor([said(claim)])
    states = torch.randn(1, input_ids.shape[1], 8, requires_grad=True)

    loss = WordNaming(8, WordLabels(tokenizer))(states, input_ids, codes)

    assert bool(loss > 0) == bool(words)
    learning = set()
    if words:
        loss.backward()
        assert states.grad is not None
        learning = set(input_ids[0, states.grad[0].abs().sum(dim=1) > 0].tolist())
    assert learning == {int(tokenizer([word])[0, 1]) for word in words}
