"""Slots stay side by side, keep what is theirs, and take no more memory than they were given."""

import random

import pytest
import torch

from services.generate.model.kv_cache import CacheShape, KVCache, Slot
from tests.generate.scarce_memory import ScarceMemory

SHAPE = CacheShape(num_layers=2, num_kv_heads=3, head_dim=4, device=torch.device("cpu"), dtype=torch.float32)


def fill(slot: Slot, number: float, length: int) -> None:
    """As a model would: every token's keys are the number, its values the negative."""
    for keys, values in zip(slot.cache.keys, slot.cache.values, strict=True):
        keys[slot.index, :, :length] = number
        values[slot.index, :, :length] = -number
    slot.length = length


def assert_holds(slot: Slot, number: float) -> None:
    kept = slot.cache.copy_out(slot, slot.length)
    assert kept.keys.shape == (2, 3, slot.length, 4)
    assert (kept.keys == number).all()
    assert (kept.values == -number).all()


def taken(cache: KVCache) -> int:
    """Tokens that there is memory for."""
    return int(cache.keys[0].shape[0] * cache.keys[0].shape[2])


@pytest.mark.slow
def test_slots_keep_what_is_theirs_through_any_order_of_opening_and_closing() -> None:
    cache = KVCache(SHAPE, max_tokens=2000)
    chance = random.Random(0)
    slots: dict[float, Slot] = {}
    most_open = 0
    for number in range(1, 400):
        capacity = chance.choice((3, 20, 90))
        if cache.can_open(capacity) and chance.random() < 0.6:
            slot = slots[number] = cache.open(capacity)
            assert (slot.capacity, slot.length) == (capacity, 0)
            fill(slot, number, chance.randint(0, capacity))
        elif slots:
            cache.close(slots.pop(chance.choice(list(slots))))
        most_open = max(most_open, len(slots))
        assert sorted(slot.index for slot in slots.values()) == list(range(cache.num_open))
        assert taken(cache) <= 2000
        for own, slot in slots.items():
            assert_holds(slot, own)
    assert most_open > 10


def test_nothing_stale_lies_behind_the_tokens_of_a_slot() -> None:
    cache = KVCache(SHAPE, max_tokens=1000)
    slots = [cache.open(50) for _ in range(4)]
    for slot, length in zip(slots, (50, 20, 40, 10), strict=True):
        fill(slot, torch.nan, length)
    for slot in (slots[0], slots[2], slots[1], slots[3]):
        cache.close(slot)
        for numbers in (*cache.keys, *cache.values):
            finite = numbers.isfinite()
            for other in slots:
                if other.index >= 0:
                    assert finite[other.index, :, other.length :].all()
            assert finite[cache.num_open :].all()


def test_memory_is_taken_as_slots_need_it_and_never_above_the_limit() -> None:
    cache = KVCache(SHAPE, max_tokens=1000)
    assert taken(cache) == 0
    cache.open(100)
    assert taken(cache) == 100
    for _ in range(9):
        cache.open(100)
    assert taken(cache) == 1000
    assert not cache.can_open(1)
    with pytest.raises(ValueError, match="a slot of 1 tokens does not fit beside 10 others in 1000 tokens"):
        cache.open(1)


def test_a_long_slot_leaves_room_for_short_ones_again_once_it_is_closed() -> None:
    cache = KVCache(SHAPE, max_tokens=1000)
    long = cache.open(900)
    assert not cache.can_open(10)
    cache.close(long)
    for number in range(1, 11):
        fill(cache.open(100), number, 7)
    assert taken(cache) == 1000


def test_growing_seldom_moves_what_is_there() -> None:
    cache = KVCache(SHAPE, max_tokens=100_000)
    moves = 0
    for _ in range(200):
        before = cache.keys[0]
        cache.open(10)
        moves += before is not cache.keys[0]
    assert moves < 12


@pytest.mark.parametrize("num_moved", range(2 * SHAPE.num_layers))
@pytest.mark.parametrize("is_next_long", [True, False])
def test_memory_that_runs_out_part_way_costs_only_the_slot_that_asked_for_it(
    num_moved: int, is_next_long: bool
) -> None:
    cache = KVCache(SHAPE, max_tokens=1000)
    first, second = cache.open(20), cache.open(20)
    fill(first, 3, 12)
    fill(second, 5, 20)
    with ScarceMemory("new_zeros", num_moved), pytest.raises(torch.OutOfMemoryError):
        cache.open(200)
    assert cache.num_open == 2
    assert_holds(first, 3)
    assert_holds(second, 5)
    cache.close(first)
    assert_holds(second, 5)
    third = cache.open(200 if is_next_long else 10)
    fill(third, 7, third.capacity)
    assert_holds(second, 5)
    assert_holds(third, 7)
    assert len({tuple(numbers.shape) for numbers in (*cache.keys, *cache.values)}) == 1
    assert taken(cache) <= 1000
    for slot in (second, third):
        cache.close(slot)
    fill(cache.open(1000), 9, 1000)


def test_a_prefix_is_copied_from_one_slot_to_another() -> None:
    cache = KVCache(SHAPE, max_tokens=1000)
    one, other = cache.open(50), cache.open(30)
    fill(one, 3, 40)
    prefix = cache.copy_out(one, 25)
    assert (prefix.num_tokens, prefix.num_bytes) == (25, 2 * 2 * 3 * 25 * 4 * 4)
    cache.close(one)
    cache.copy_in(other, prefix)
    assert other.length == 25
    assert_holds(other, 3)


def test_what_does_not_fit_is_refused() -> None:
    cache = KVCache(SHAPE, max_tokens=1000)
    one, other = cache.open(50), cache.open(30)
    fill(one, 3, 40)
    with pytest.raises(ValueError, match="holds 40 tokens, not 41"):
        cache.copy_out(one, 41)
    with pytest.raises(ValueError, match="40 tokens do not fit into a slot of 30"):
        cache.copy_in(other, cache.copy_out(one, 40))
    with pytest.raises(ValueError, match="that holds 40"):
        cache.copy_in(one, cache.copy_out(one, 1))
    cache.close(one)
    with pytest.raises(ValueError, match="closed"):
        cache.close(one)
