"""A server for huggingface_hub: the requests by which it lists, downloads, creates and writes repositories."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GITATTRIBUTES = {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"}


class Answer(Exception):
    """A response that is not a success, with the code by which the Hub tells errors apart."""

    def __init__(self, status: int, code: str = "", message: str = "", url: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.content = {"error": message, "url": url}
        self.headers = {"X-Error-Code": code, "X-Error-Message": message}


@dataclass
class Repository:
    """The files of each commit by its id, oldest first."""

    commits: dict[str, dict[str, bytes]]
    private: bool = False
    gated: bool = False
    messages: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path) -> "Repository":
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return cls({COMMIT: {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}})

    @property
    def head(self) -> str:
        return list(self.commits)[-1]

    def at(self, revision: str) -> tuple[str, dict[str, bytes]]:
        commit = self.head if revision == "main" else revision
        if commit not in self.commits:
            raise Answer(404, "RevisionNotFound")
        return commit, self.commits[commit]


class Hub:
    """Repositories, and accounts by their tokens: a user's name and the organisations that it may write for."""

    def __init__(
        self,
        repositories: Mapping[str, Repository] | None = None,
        accounts: Mapping[str, tuple[str, ...]] | None = None,
        cut: Mapping[str, int] | None = None,
    ) -> None:
        self.repositories = dict(repositories or {})
        self.accounts = dict(accounts or {})
        self.cut = dict(cut or {})
        self.objects: dict[str, bytes] = {}  # of LFS, by digest
        self.sent: list[str] = []  # what was sent to LFS, by digest
        self.refuse_objects: set[str] = set()
        self.url = ""

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve until the end of the block; yields the URL, for `HF_ENDPOINT`."""
        handler = type("Handler", (_Handler,), {"hub": self, "pending": dict(self.cut)})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self.url
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def repository(self, name: str, account: tuple[str, ...] | None) -> Repository:
        found = self.repositories.get(name)
        if found is None or (found.private and name.partition("/")[0] not in (account or ())):
            raise Answer(404, "RepoNotFound")
        return found

    def create(self, asked: Mapping[str, Any], account: tuple[str, ...]) -> dict[str, Any]:
        name = f"{asked['organization'] or account[0]}/{asked['name']}"
        if asked["organization"] not in (None, *account):
            raise Answer(403, message="You don't have the rights to create a model under this namespace")
        if name in self.repositories:
            raise Answer(409, message="You already created this model repo", url=f"{self.url}/{name}")
        first = hashlib.sha1(name.encode()).hexdigest()
        self.repositories[name] = Repository({first: dict(GITATTRIBUTES)}, asked.get("visibility") == "private")
        return {"url": f"{self.url}/{name}"}

    def preupload(self, repository: Repository, asked: Mapping[str, Any]) -> dict[str, Any]:
        files, there = [], repository.commits[repository.head]
        for file in asked["files"]:
            path, content = file["path"], there.get(file["path"])
            mode = "lfs" if path.endswith(".safetensors") else "regular"
            oid = None if content is None else _sha256(content) if mode == "lfs" else _blob(content)
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return {"files": files}

    def batch(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        objects = []
        for wanted in asked["objects"]:
            upload = {"upload": {"href": f"{self.url}/lfs/{wanted['oid']}"}, "verify": {"href": f"{self.url}/verify"}}
            objects.append(wanted if wanted["oid"] in self.objects else {**wanted, "actions": upload})
        return {"transfer": "basic", "objects": objects}

    def commit(self, name: str, repository: Repository, lines: list[dict[str, Any]]) -> dict[str, Any]:
        header, files = lines[0]["value"], dict(repository.commits[repository.head])
        if header.get("parentCommit", repository.head) != repository.head:
            raise Answer(412, message="A commit has happened since. Please refresh and try again.")
        for line in lines[1:]:
            value = line["value"]
            match line["key"]:
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.objects[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        digests = "".join(f"{path} {_sha256(content)}" for path, content in sorted(files.items()))
        commit = hashlib.sha1(f"{repository.head}{digests}".encode()).hexdigest()
        repository.commits[commit] = files
        repository.messages.append(header["summary"])
        return {"success": True, "commitOid": commit, "commitUrl": f"{self.url}/{name}/commit/{commit}"}


def serving(
    repositories: Mapping[str, Path], cut: Mapping[str, int] | None = None, gated: Collection[str] = ()
) -> AbstractContextManager[str]:
    """Serve folders by repository; of a path in `cut`, the first request's body ends after so many bytes. The files of
    a repository in `gated` are refused.

    Yields the URL, for `HF_ENDPOINT`.
    """
    hub = Hub({name: Repository.of(folder) for name, folder in repositories.items()}, cut=cut)
    for name in gated:
        hub.repositories[name].gated = True
    return hub.serving()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    pending: dict[str, int]

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        account = self.hub.accounts.get(self.headers.get("Authorization", "").removeprefix("Bearer "))
        try:
            if self.command in ("POST", "PUT"):
                self._json(self._write(path, body, account))
            elif path == "api/whoami-v2":
                user, *organisations = self._known(account)
                self._json({"type": "user", "name": user, "orgs": [{"name": each} for each in organisations]})
            elif listed := re.fullmatch(r"api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
                self._json(_listing(listed[1], self.hub.repository(listed[1], account), listed[2] or "main"))
            elif file := re.fullmatch(r"([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                repository = self.hub.repository(file[1], account)
                if repository.gated:
                    raise Answer(403, "GatedRepo")
                self._file(*repository.at(file[2]), file[3])
            else:
                raise Answer(404, "RepoNotFound")
        except Answer as error:
            self._send(error.status, error.headers, json.dumps(error.content).encode())

    def _write(self, path: str, body: bytes, account: tuple[str, ...] | None) -> dict[str, Any]:
        if path == "api/validate-yaml":
            return _validated(json.loads(body)["content"])
        if path.startswith("lfs/"):
            return self._object(path.removeprefix("lfs/"), body)
        if path == "verify":
            return {}
        owner = self._known(account)
        if path == "api/repos/create":
            return self.hub.create(json.loads(body), owner)
        asked = re.fullmatch(r"(?:api/models/)?([^/]+/[^/]+?)(/preupload/main|/commit/main|\.git/info/lfs/.+)", path)
        if asked is None or asked[1].partition("/")[0] not in owner:
            raise Answer(403, message="Forbidden")
        repository = self.hub.repository(asked[1], account)
        if asked[2] == "/commit/main":
            return self.hub.commit(asked[1], repository, [json.loads(line) for line in body.splitlines()])
        content = json.loads(body)
        return self.hub.preupload(repository, content) if "files" in content else self.hub.batch(content)

    def _object(self, oid: str, body: bytes) -> dict[str, Any]:
        if oid in self.hub.refuse_objects or _sha256(body) != oid:
            raise Answer(403, message="Upload refused")
        self.hub.objects[oid] = body
        self.hub.sent.append(oid)
        return {}

    def _known(self, account: tuple[str, ...] | None) -> tuple[str, ...]:
        if account is None:
            raise Answer(401, message="Invalid credentials in Authorization header")
        return account

    def _file(self, commit: str, files: Mapping[str, bytes], path: str) -> None:
        if path not in files:
            raise Answer(404, "EntryNotFound")
        content = files[path]
        start = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
        headers = {"ETag": f'"{_sha256(content)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        stop = len(content) if self.command == "HEAD" else start + self.pending.pop(path, len(content))
        if stop < len(content):
            self.close_connection = True
        self._send(206 if start else 200, headers, content[start:], stop - start)

    def _json(self, content: Mapping[str, Any]) -> None:
        self._send(200, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def _send(self, status: int, headers: Mapping[str, str], body: bytes, stop: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:stop])

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _validated(card: str) -> dict[str, Any]:
    """Check a card's metadata by the rules of the Hub that cards of ours could break."""
    metadata = yaml.safe_load(card.split("---\n")[1])
    forms = {"license": r"[a-z0-9.+-]+", "license_name": r"[a-z0-9.-]+", "base_model": r"[\w.-]+/[\w.-]+"}
    wrong = [name for name, form in forms.items() if name in metadata and not re.fullmatch(form, metadata[name])]
    if wrong or (metadata.get("license") == "other") != ("license_name" in metadata):
        raise Answer(400, message=f"metadata: {wrong}")
    return {"errors": [], "warnings": []}


def _listing(name: str, repository: Repository, revision: str) -> dict[str, Any]:
    commit, files = repository.at(revision)
    siblings = [{"rfilename": path, "size": len(content)} for path, content in files.items()]
    about = {"id": name, "modelId": name, "private": repository.private, "tags": []}
    return {**about, "sha": commit, "siblings": siblings}
