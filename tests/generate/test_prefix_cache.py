"""What is kept of prompts: the longest beginning is found, and no more is kept than may be."""

import torch

from services.generate.kv_cache import KeyValues
from services.generate.prefix_cache import Prefix, PrefixCache, as_token_ids, num_shared

BYTES_PER_TOKEN = 2 * 3 * 2 * 4 * 4  # keys and values, 3 layers, 2 heads, 4 numbers of 4 bytes


def prefix(*input_ids: int) -> Prefix:
    numbers = torch.tensor(input_ids, dtype=torch.float32)[None, None, :, None].expand(3, 2, -1, 4).contiguous()
    return Prefix(as_token_ids(input_ids), KeyValues(numbers, -numbers))


def cache_of(num_tokens: int) -> PrefixCache:
    return PrefixCache(num_tokens * BYTES_PER_TOKEN)


def found(cache: PrefixCache, *input_ids: int) -> tuple[int, tuple[int, ...] | None]:
    shared, one = cache.longest(as_token_ids(input_ids))
    return shared, None if one is None else tuple(one.input_ids.tolist())


def test_shared_tokens_are_counted_up_to_the_first_that_differs() -> None:
    for some, others, number in (((1, 2, 3), (1, 2, 4), 2), ((1, 2), (1, 2, 3), 2), ((5,), (6,), 0), ((), (1,), 0)):
        assert num_shared(as_token_ids(some), as_token_ids(others)) == number
        assert num_shared(as_token_ids(others), as_token_ids(some)) == number


def test_the_longest_beginning_is_found() -> None:
    cache = cache_of(100)
    assert found(cache, 1, 2, 3) == (0, None)
    for kept in (prefix(1, 2, 3, 4), prefix(1, 2, 9), prefix(8, 8)):
        cache.put(kept)
    assert found(cache, 1, 2, 3, 7, 7) == (3, (1, 2, 3, 4))
    assert found(cache, 1, 2, 9, 7) == (3, (1, 2, 9))
    assert found(cache, 7) == (0, None)
    assert cache.covers(as_token_ids((1, 2, 9))) and not cache.covers(as_token_ids((1, 2, 9, 9)))


def test_the_first_tokens_of_a_prefix_have_their_own_keys_and_values() -> None:
    first = prefix(4, 5, 6).first(2)
    assert first.num_tokens == 2
    assert first.keys[2, 1, :, 3].tolist() == [4, 5] and first.values[0, 0, :, 0].tolist() == [-4, -5]


def test_a_prefix_takes_the_place_of_those_that_it_begins_with() -> None:
    cache = cache_of(100)
    cache.put(prefix(1, 2))
    cache.put(prefix(1, 2, 3))
    assert len(cache) == 1 and cache.num_bytes == 3 * BYTES_PER_TOKEN


def test_what_was_not_used_for_longest_goes_first_and_the_budget_holds() -> None:
    cache = cache_of(10)
    cache.put(prefix(1, 1, 1, 1))
    cache.put(prefix(2, 2, 2, 2))
    assert found(cache, 1, 1)[0] == 2
    cache.put(prefix(3, 3, 3, 3))
    assert found(cache, 2, 2) == (0, None)
    assert found(cache, 1, 1)[0] == found(cache, 3, 3)[0] == 2
    assert cache.num_bytes == 8 * BYTES_PER_TOKEN


def test_a_prefix_larger_than_the_cache_drives_nothing_out() -> None:
    cache = cache_of(4)
    cache.put(prefix(1, 1, 1))
    cache.put(prefix(2, 2, 2, 2, 2))
    assert found(cache, 1)[0] == 1 and found(cache, 2)[0] == 0


def test_a_cleared_cache_holds_nothing() -> None:
    cache = cache_of(4)
    cache.put(prefix(1, 1, 1))
    cache.clear()
    assert len(cache) == 0 and cache.num_bytes == 0 and found(cache, 1) == (0, None)
