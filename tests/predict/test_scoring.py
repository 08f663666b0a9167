"""The trie of candidates: what is shared, what a node sees, and how edges add up to labels."""

import numpy as np
import pytest
import torch

from services.predict.scoring import Candidates, choose_beginnings

END = 1


def test_a_prefix_that_candidates_share_is_one_node() -> None:
    some = Candidates([[5, 6, 7, END], [5, 6, END], [5, 8, END], [9, END]], 0)
    assert some.num_nodes == 1 + 5, "the start, 5, 5 6, 5 6 7, 5 8, 9"
    assert some.tokens.tolist() == [0, 5, 6, 7, 8, 9]
    assert some.depths.tolist() == [0, 1, 2, 3, 2, 1]
    assert len(some.edge_nodes) == 5 + 4, "each node but the start is reached by one, and each candidate ends by one"
    assert (np.diff(some.edge_nodes) >= 0).all()


def test_a_node_sees_its_ancestors_and_itself_alone() -> None:
    some = Candidates([[5, 6, END], [5, 8, END], [9, END]], 0)
    expected = [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 0, 0, 1],
    ]
    assert some.tokens.tolist() == [0, 5, 6, 8, 9]
    assert some.visible().astype(int).tolist() == expected


def test_a_candidate_is_the_sum_of_its_edges() -> None:
    token_ids = [[5, 6, 7, END], [5, 6, END], [9, END], [END]]
    some = Candidates(token_ids, 0)
    edges = torch.arange(1, len(some.edge_nodes) + 1).float() ** 2
    value = dict(
        zip(zip(some.edge_nodes.tolist(), some.edge_tokens.tolist(), strict=True), edges.tolist(), strict=True)
    )
    node_of = {(): 0, (5,): 1, (5, 6): 2, (5, 6, 7): 3, (9,): 4}
    expected = [sum(value[node_of[tuple(ids[:place])], token] for place, token in enumerate(ids)) for ids in token_ids]
    assert some.log_probabilities(edges).tolist() == expected


def test_labels_of_equal_tokens_are_scored_equally() -> None:
    some = Candidates([[5, END], [5, END]], 0)
    first, second = some.log_probabilities(torch.tensor([-1.0, -2.0])).tolist()
    assert first == second == -3.0


def test_some_candidates_of_a_trie_keep_their_order() -> None:
    some = Candidates([[5, END], [6, END], [7, 8, END]], 0)
    assert some.of([2, 0]).token_ids == [(7, 8, END), (5, END)]
    assert some.beginnings() == {5: [0], 6: [1], 7: [2]}


@pytest.mark.parametrize("token_ids", [[], [[]], [[5, END], []]])
def test_a_trie_needs_labels_with_tokens(token_ids: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="there must be candidates"):
        Candidates(token_ids, 0)


def test_beginnings_are_left_out_from_the_least_probable_on_while_all_those_stay_within_the_share() -> None:
    masses = {1: 0.5, 2: 0.3, 3: 0.006, 4: 0.003, 5: 0.0005}
    assert choose_beginnings(masses, 1.0, 0.01) == [1, 2]
    assert choose_beginnings(masses, 1.0, 0.005) == [1, 2, 3]
    assert choose_beginnings(masses, 0.1, 0.005) == [1, 2, 3, 4]
    assert choose_beginnings(masses, 1.0, 0.0) == [1, 2, 3, 4, 5]
    assert choose_beginnings(masses, 0.0, 0.5) == [1, 2, 3, 4, 5]
    assert choose_beginnings({}, 1.0, 0.5) == []
