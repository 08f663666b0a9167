"""A Kubernetes API that has Secrets alone, as far as kubectl needs it to get, create and patch them."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Object = dict[str, Any]

SECRETS = {
    "kind": "APIResourceList",
    "groupVersion": "v1",
    "resources": [
        {
            "name": "secrets",
            "singularName": "secret",
            "namespaced": True,
            "kind": "Secret",
            "verbs": ["create", "get", "list", "patch"],
        }
    ],
}
DISCOVERY: dict[str, Object] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": SECRETS,
}
FOLDER = "/api/v1/namespaces/fovea/secrets"


class KubernetesApi:
    """The Secrets of the namespace `fovea`. Every change raises the resource version, as in a cluster."""

    def __init__(self) -> None:
        self.secrets: dict[str, Object] = {}
        # Called before each change, once: somebody else who is faster.
        self.before_change: Callable[[], None] | None = None
        self._version = 0

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Object]:
        if path in DISCOVERY:
            return 200, DISCOVERY[path]
        name = path.removeprefix(f"{FOLDER}/")
        if method == "GET":
            return (200, self.secrets[name]) if name in self.secrets else (404, failure("NotFound", 404))
        if self.before_change is not None:
            faster, self.before_change = self.before_change, None
            faster()
        if method == "POST":
            if body["metadata"]["name"] in self.secrets:
                return 409, failure("AlreadyExists", 409)
            return 201, self.keep(body)
        secret = json.loads(json.dumps(self.secrets[name]))
        for step in body:
            *parents, last = step["path"].strip("/").split("/")
            inner = secret
            for parent in parents:
                inner = inner[parent]
            if step["op"] == "test" and inner.get(last) != step["value"]:
                return 422, failure("Invalid", 422)
            inner[last] = step["value"]
        return 200, self.keep(secret)

    def keep(self, secret: Object) -> Object:
        self._version += 1
        kept = {**secret, "metadata": {**secret["metadata"], "resourceVersion": str(self._version)}}
        self.secrets[kept["metadata"]["name"]] = kept
        return kept


def failure(reason: str, code: int) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}


@contextmanager
def serving(api: KubernetesApi, folder: Path) -> Iterator[Path]:
    """A kubeconfig file whose current context is the API, while it is served."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            code, answer = api.answer(self.command, self.path.partition("?")[0], json.loads(sent or b"null"))
            body = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = handle_any

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            file = folder / "kubeconfig"
            cluster = {"name": "test", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
            context = {"name": "test", "context": {"cluster": "test", "user": "test"}}
            config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context]}
            config |= {"users": [{"name": "test", "user": {"token": "any"}}], "current-context": "test"}
            file.write_text(json.dumps(config))
            yield file
        finally:
            server.shutdown()
            thread.join()
