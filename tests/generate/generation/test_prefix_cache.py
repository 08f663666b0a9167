"""The prefix cache: the longest prefix is found, and no more is kept than permitted."""

import gc
import random
import sys
from dataclasses import replace

import pytest
import torch

from services.generate.generation.prefix_cache import Prefix, PrefixCache, as_token_ids, num_shared
from services.generate.model.kv_cache import KeyValues

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


def test_each_tenant_finds_what_is_its_own() -> None:
    cache = cache_of(100)
    for tenant, tokens in (("north", (1, 2, 3)), ("south", (1, 2, 3, 4)), ("", (1, 2))):
        cache.put(replace(prefix(*tokens), tenant=tenant))
    assert len(cache) == 3
    asked = as_token_ids((1, 2, 3, 4, 5))
    shared = {tenant: cache.longest(asked, tenant)[0] for tenant in ("north", "south", "", "west")}
    assert shared == {"north": 3, "south": 4, "": 2, "west": 0}
    assert cache.covers(as_token_ids((1, 2, 3)), "north") and not cache.covers(as_token_ids((1, 2, 3)), "")


def test_the_first_tokens_of_a_prefix_have_their_own_keys_and_values() -> None:
    first = prefix(4, 5, 6).first(2)
    assert first.num_tokens == 2
    assert first.keys[2, 1, :, 3].tolist() == [4, 5] and first.values[0, 0, :, 0].tolist() == [-4, -5]


def test_a_prefix_takes_the_place_of_those_that_it_begins_with() -> None:
    cache = cache_of(100)
    cache.put(prefix(1, 2))
    cache.put(prefix(1, 2, 3))
    assert len(cache) == 1 and cache.num_bytes == 3 * BYTES_PER_TOKEN


def test_a_prefix_that_another_one_begins_with_is_kept_already() -> None:
    cache = cache_of(100)
    cache.put(prefix(1, 2, 3))
    for again in (prefix(1, 2), prefix(1, 2, 3)):
        cache.put(again)
    assert len(cache) == 1 and cache.num_bytes == 3 * BYTES_PER_TOKEN
    assert found(cache, 1, 2) == (2, (1, 2, 3))


@pytest.mark.slow
def test_among_many_the_longest_beginning_is_found_and_whatever_was_not_used_for_longest_is_gone() -> None:
    """Against a list that is looked through whole."""
    chance = random.Random(0)
    cache, listed, num_dropped = cache_of(300), list[tuple[int, ...]](), 0
    for _ in range(3000):
        # few tokens, so that many begin alike; 255, 256 and 65536 differ from 1 and 0 in one byte or another
        ids = tuple(chance.choices((0, 1, 255, 256, 65536), k=chance.randint(1, 12)))
        shared = {one: num_shared(as_token_ids(ids), as_token_ids(one)) for one in listed}
        number, best = found(cache, *ids)
        assert number == max(shared.values(), default=0)
        if best is not None:
            assert shared[best] == number
            listed.append(listed.pop(listed.index(best)))
        if number < len(ids):
            cache.put(prefix(*ids))
            listed = [one for one in listed if one != ids[: len(one)]]
            while sum(map(len, listed)) + len(ids) > 300:
                num_dropped += 1
                del listed[0]
            listed.append(ids)
        assert len(cache) == len(listed)
        assert cache.num_bytes == sum(map(len, listed)) * BYTES_PER_TOKEN
    assert num_dropped > 1000


class NumCalls:
    """Counts calls of Python and native functions while it is entered, except those of the garbage collector."""

    def __enter__(self) -> "NumCalls":
        self.number = 0
        gc.disable()
        sys.setprofile(self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _note(self, frame: object, event: str, argument: object) -> None:
        self.number += event in ("call", "c_call")


@pytest.mark.parametrize("num_alike", [0, 20])
def test_looking_for_a_beginning_is_no_more_work_where_much_is_kept(num_alike: int) -> None:
    """Nor where all prompts begin with one template."""
    template = (7,) * num_alike
    num_calls = []
    for num_kept in (10, 1000):
        cache = cache_of(30 * (num_kept + 1))
        for number in range(num_kept):
            cache.put(prefix(*template, number, 1, 2, 3))
        assert len(cache) == num_kept
        own = prefix(*template, num_kept, 5)
        with NumCalls() as calls:
            cache.longest(own.input_ids)
            cache.covers(own.input_ids)
            cache.put(own)
        num_calls.append(calls.number)
    assert num_calls[1] <= 2 * num_calls[0]


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
