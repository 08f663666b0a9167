"""A server for huggingface_hub: the requests by which it lists a repository and downloads its files."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serving(repositories: Mapping[str, Path], cut: Mapping[str, int] | None = None) -> Iterator[str]:
    """Serve folders by repository; of a path in `cut`, the first request's body ends after so many bytes.

    Yields the URL, for `HF_ENDPOINT`.
    """
    pending = dict(cut or {})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(has_body=False)

        def do_GET(self) -> None:
            self._answer(has_body=True)

        def _answer(self, *, has_body: bool) -> None:
            path = unquote(urlsplit(self.path).path).strip("/")
            listed = path.removeprefix("api/models/").removesuffix(f"/revision/{COMMIT}").removesuffix("/revision/main")
            repository, _, file = path.partition("/resolve/")
            if path.startswith("api/models/") and listed in repositories:
                self._send(json.dumps(_listing(listed, repositories[listed])).encode(), has_body=has_body)
            elif repository in repositories and file.startswith(f"{COMMIT}/"):
                self._file(repositories[repository], file.removeprefix(f"{COMMIT}/"), has_body=has_body)
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def _file(self, root: Path, path: str, *, has_body: bool) -> None:
            content = (root / path).read_bytes()
            start = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
            etag = hashlib.sha256(content).hexdigest()
            self.send_response(206 if start else 200)
            for name, value in (("ETag", f'"{etag}"'), ("X-Repo-Commit", COMMIT), ("Accept-Ranges", "bytes")):
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content) - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            if has_body:
                self.wfile.write(content[start : start + pending.pop(path, len(content))])
                if path in (cut or {}) and not start:
                    self.close_connection = True

        def _send(self, body: bytes, *, has_body: bool) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if has_body:
                self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _listing(repository: str, root: Path) -> dict[str, object]:
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    siblings = [{"rfilename": path.relative_to(root).as_posix(), "size": path.stat().st_size} for path in files]
    return {"id": repository, "modelId": repository, "sha": COMMIT, "private": False, "siblings": siblings, "tags": []}
