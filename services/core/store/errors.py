"""Errors of the model store, each a message of one sentence.

    StoreError
    ├── InvalidCheckpoint    a folder, name or description that the store refuses; nothing was published
    │   └── UnservedKind     a checkpoint of a kind that the service does not run
    ├── NotFoundInStore      no such model, version, alias or object
    ├── CorruptCheckpoint    stored bytes are not those that were published
    ├── AliasMoved           an alias is not where the caller expected it; nothing was changed
    └── StoreUnavailable     the store can't be reached, refuses us, or is held by another writer

Clients of the HTTP services never see them: a service continues to serve its current version, and jobs and the command
line print the message.
"""


class StoreError(Exception):
    """An error of the store; the message is one line that can be shown to users."""


class InvalidCheckpoint(StoreError):
    pass


class UnservedKind(InvalidCheckpoint):
    pass


class NotFoundInStore(StoreError):
    pass


class CorruptCheckpoint(StoreError):
    """Damaged bytes: `file` is the path inside the checkpoint; `expected` and `found` are digests, sizes or states."""

    def __init__(self, checkpoint: str, file: str, *, expected: str, found: str) -> None:
        super().__init__(f"{checkpoint} is damaged: {file}: expected {expected}, found {found}")
        self.file = file
        self.expected = expected
        self.found = found


class AliasMoved(StoreError):
    """A lost race: `expected` and `found` are version ids, None for an alias that does not exist."""

    def __init__(self, alias: str, *, expected: str | None, found: str | None) -> None:
        super().__init__(
            f"{alias} was not moved: expected it at {expected or 'no version'}, found {found or 'no version'}"
        )
        self.expected = expected
        self.found = found


class StoreUnavailable(StoreError):
    pass
