"""The trie of candidates: what is run, what a node sees, and how logits become labels' probabilities."""

import pytest
import torch

from services.predict.model.scoring import Candidates, DecoderRows

END = 1


def test_only_places_where_candidates_part_are_run_and_what_leads_to_them() -> None:
    some = Candidates([[5, 6, 7, 4, END], [5, 6, END], [5, 8, END], [9, 10, 11, END]], 0)
    assert some.rows.tokens.tolist() == [0, 5, 6], "behind 5 6 7, 5 8 and 9 nothing is left to tell"
    assert some.rows.depths.tolist() == [0, 1, 2]
    assert some.edge_nodes.tolist() == [0, 0, 1, 1, 2, 2]
    assert some.edge_tokens.tolist() == [5, 9, 6, 8, 7, END]


def test_a_prefix_that_all_share_is_run_without_a_choice() -> None:
    some = Candidates([[5, 6, 7, END], [5, 6, 8, END]], 0)
    assert some.rows.tokens.tolist() == [0, 5, 6]
    assert some.edge_nodes.tolist() == [2, 2]


def test_a_node_is_seen_by_itself_and_what_begins_with_it_alone() -> None:
    some = Candidates([[9, 1], [5, 6, END], [5, 8, 3, END], [9, 2], [5, 8, 4, END]], 0)
    assert some.rows.tokens.tolist() == [0, 5, 8, 9]
    assert some.rows.stops.tolist() == [4, 3, 3, 4]


def test_a_token_of_an_answer_is_seen_by_all_behind_it() -> None:
    chain = DecoderRows.of([5, 6, END], 0)
    assert (chain.tokens.tolist(), chain.depths.tolist()) == ([0, 5, 6], [0, 1, 2])
    assert chain.stops.tolist() == [3, 3, 3]


def test_a_candidate_has_the_product_of_its_choices() -> None:
    some = Candidates([[5, 6, 7, END], [5, 6, END], [9, END], [END]], 0)
    logits = torch.tensor([0.3, 1.0, -2.0, 0.7, 0.1])
    start = torch.tensor([0.3, 1.0, -2.0]).log_softmax(0)
    deeper = torch.tensor([0.7, 0.1]).log_softmax(0)
    expected = [start[0] + deeper[0], start[0] + deeper[1], start[1], start[2]]
    torch.testing.assert_close(some.log_probabilities(logits), torch.stack(expected))
    assert float(some.log_probabilities(logits).exp().sum()) == pytest.approx(1)


def test_one_candidate_is_certain() -> None:
    assert Candidates([[5, 6, END]], 0).log_probabilities(torch.empty(0)).tolist() == [0.0]


def test_inputs_that_share_a_trie_are_computed_together_and_stay_apart() -> None:
    some = Candidates([[5, 6, 7, END], [9, END], [5, 6, END], [END]], 0)
    logits = torch.tensor([[0.3, 1.0, -2.0, 0.7, 0.1], [900.0, -900.0, 0.0, -900.0, 900.0]])
    each = torch.stack([some.log_probabilities(row) for row in logits])
    torch.testing.assert_close(some.log_probabilities(logits), each)
    torch.testing.assert_close(each[1], torch.tensor([-1800.0, -1800.0, 0.0, -900.0]))


@pytest.mark.parametrize("token_ids", [[], [[]], [[5, END], []]])
def test_a_trie_needs_labels_with_tokens(token_ids: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="there must be candidates"):
        Candidates(token_ids, 0)


@pytest.mark.parametrize("token_ids", [[[5, 6], [5]], [[5, END], [5, END], [6, END]]])
def test_a_label_that_another_begins_with_is_refused(token_ids: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="must not begin with another"):
        Candidates(token_ids, 0)
