"""Pixels on their way from the request that added an image to its indexing."""

import numpy as np

from services.embed.collections.reader import FreshPixels

PIXELS = np.zeros((4, 5, 3), np.uint8)


def test_pixels_are_handed_out_once_and_to_their_own_checkpoint_only() -> None:
    fresh = FreshPixels(1000)
    fresh.put("checkpoint", "image", PIXELS)
    assert fresh.take("another", "image") is None
    assert fresh.take("checkpoint", "image") is PIXELS
    assert fresh.take("checkpoint", "image") is None


def test_the_oldest_pixels_are_let_go_where_all_would_take_too_much() -> None:
    fresh = FreshPixels(2 * PIXELS.nbytes)
    for image in ("first", "second", "second", "third"):
        fresh.put("checkpoint", image, PIXELS)
    held = [image for image in ("first", "second", "third") if fresh.take("checkpoint", image) is not None]
    assert held == ["second", "third"]
    fresh.put("checkpoint", "fourth", PIXELS)
    assert fresh.take("checkpoint", "fourth") is PIXELS


def test_what_is_larger_than_the_room_is_not_held() -> None:
    fresh = FreshPixels(PIXELS.nbytes - 1)
    fresh.put("checkpoint", "image", PIXELS)
    assert fresh.take("checkpoint", "image") is None
