"""A process that adds, patches and deletes images until it is killed, and what may be stored then."""

import random
from multiprocessing.connection import Connection

from services.embed.collections.storage.image_store import ImageStore
from tests.embed.collections.killed_process import Reports
from tests.embed.collections.stored import LIMITS, content, everything, new_image

# What it does: add, delete or patch the images of these numbers.
Operation = tuple[str, list[int]]
# How often the image of each number was patched.
Known = dict[int, int]


def data_of(number: int) -> bytes:
    """Two neighbours share their bytes; some are larger than a page of a file."""
    return content(number // 2, 200 + number // 2 * 977 % 30_000)


def add_and_delete(store: ImageStore, seed: int, reports: Connection) -> None:
    """Never returns."""
    dice = random.Random(seed)
    there = [int(image.id) for image in store.images(None, 1_000_000)]
    first = 100_000 * seed
    while True:
        chance = dice.random()
        if there and chance < 0.4:
            operation: Operation = ("delete", [there.pop(dice.randrange(len(there)))])
        elif there and chance < 0.6:
            operation = ("patch", [dice.choice(there)])
        else:
            operation = ("add", list(range(first, first := first + dice.randint(1, 12))))
        kind, numbers = operation
        reports.send((operation, False))
        if kind == "add":
            store.add([new_image(str(number), data_of(number)) for number in numbers], LIMITS)
            there += numbers
        elif kind == "patch":
            times = store.image(str(numbers[0])).metadata.get("patched", 0)
            store.patch(str(numbers[0]), {"patched": times + 1}, LIMITS)
        else:
            store.delete(str(numbers[0]))
        reports.send((operation, True))


def checked(store: ImageStore, before: Known, reports: Reports) -> Known:
    """Return what is stored: what was `before` with what was done since, and all or nothing of what was begun."""
    expected = before
    for operation in reports.done:
        expected = _after(operation, expected)
    found = everything(store)
    assert all(data == data_of(int(image_id)) for image_id, (_, data) in found.items())
    there = {int(image_id): image.metadata.get("patched", 0) for image_id, (image, _) in found.items()}
    assert there in (expected, _after(reports.begun, expected) if reports.begun else expected)
    return there


def _after(operation: Operation, there: Known) -> Known:
    kind, numbers = operation
    if kind == "delete":
        return {number: times for number, times in there.items() if number not in numbers}
    return there | {number: there.get(number, -1) + 1 for number in numbers}
