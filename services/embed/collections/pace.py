"""Whether reading images from their kept states is worth it on this machine, by its clock.

Keys and values of a large model are many megabytes an image: a disk may bring them slower than a device encodes.
"""

# Before so many images were read either way, states are taken to be worth it.
MIN_IMAGES = 256


class Pace:
    """Seconds that images took, from states and encoded."""

    def __init__(self) -> None:
        self._images = {True: 0, False: 0}
        self._seconds = {True: 0.0, False: 0.0}

    def note(self, num_images: int, seconds: float, *, from_states: bool) -> None:
        self._images[from_states] += num_images
        self._seconds[from_states] += seconds

    @property
    def states_pay(self) -> bool:
        """Whether an image is read from its state in less time than it is encoded in, as far as was measured."""
        if min(self._images.values()) < MIN_IMAGES:
            return True
        return self._seconds[True] / self._images[True] < self._seconds[False] / self._images[False]
