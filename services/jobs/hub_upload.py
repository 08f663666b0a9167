"""Uploads of versions to the Hugging Face Hub, or to the server that `HF_ENDPOINT` names."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.core.printable import first_line
from services.core.refusals import Refused, shown_names
from services.core.store.manifest import MANIFEST_FILE, Manifest
from services.jobs.imports.pushed import read_manifest
from services.jobs.imports.source import HUB_SCHEME, README, HubRepository, hub_errors, repository_of

# What a new repository holds, and what a push replaces.
REPLACED = {".gitattributes", README}


def check_owner(uri: str) -> str:
    """Return the repository that `hf://owner/name` means. Raises Refused unless the token's user may write to it."""
    from huggingface_hub import HfApi, get_token

    repository, revision = repository_of(uri)
    if revision is not None:
        raise Refused(f"{uri} names a revision: a push is a new commit of hf://{repository}")
    if get_token() is None:
        raise Refused(f"{uri}: a push needs a token that may write: set HF_TOKEN, or run `hf auth login`")
    with hub_errors(uri, "written"):
        user: Any = HfApi().whoami()
    owners = [user["name"], *(organisation["name"] for organisation in user.get("orgs") or ())]
    owner = repository.partition("/")[0]
    if owner.casefold() not in (name.casefold() for name in owners):
        raise Refused(f"{uri} is {owner}'s; the token is {user['name']}'s, who may write to {shown_names(owners)}")
    return repository


def upload(repository: str, manifest: Manifest, folder: Path, card: str, *, private: bool) -> dict[str, Any]:
    """Put a version's folder and its card into a repository, made if there is none, in one commit; returns where it is.

    What a version before it had, and this one has not, is removed; the history keeps it. Files that are there already
    are not sent again. Raises Refused.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api, uri = HfApi(), f"{HUB_SCHEME}{repository}"
    with hub_errors(uri, "written"), _failed_uploads(uri):
        url = api.create_repo(repository, private=private or None, exist_ok=True)
        there = HubRepository(repository, None)
        if private and not there.is_private:
            raise Refused(f"{uri} is there already, and public: make it private on its page first")
        before = read_manifest(there)
        if before is None and (others := sorted(there.files.keys() - REPLACED)):
            raise Refused(f"{uri} holds other files ({shown_names(others)}): push to a repository of its own")
        stale = (before.files.keys() if before else set()) & there.files.keys() - manifest.files.keys() - REPLACED
        contents: dict[str, str | bytes] = {README: card.encode(), MANIFEST_FILE: manifest.to_json()}
        contents |= {path: str(folder / path) for path in manifest.files}  # a README.md of its own is its card
        commit = api.create_commit(
            repository,
            [
                *(CommitOperationAdd(path, content) for path, content in sorted(contents.items())),
                *(CommitOperationDelete(path) for path in sorted(stale)),
            ],
            commit_message=f"Push {manifest.name}@{manifest.version}",
            parent_commit=there.revision,
        )
    return {"repository": uri, "commit": commit.oid, "private": there.is_private, "url": str(url)}


@contextmanager
def _failed_uploads(uri: str) -> Iterator[None]:
    """Turn what the library raises about cards and uploads, not being errors of HTTP, into refusals of one line."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if isinstance(error, Refused | OSError):
            raise
        cause = f": {first_line(error.__cause__)}" if error.__cause__ else ""
        told = f"{' '.join(str(error).split())}{cause}"
        raise Refused(f"{uri} can't be written: {told} (the same command continues)") from None
