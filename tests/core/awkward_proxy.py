"""A proxy before a real S3 server that misbehaves on request, as networks and other servers do."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

from tests.core.s3_servers import S3Server

Treatment = Literal[
    "forward", "not implemented", "ignore if-match", "ignore if-none-match", "lose the answer", "break off"
]


@dataclass
class AwkwardProxy:
    """`treat` is given method, path and the names of the headers, lower case, of each request."""

    server: S3Server
    treat: Callable[[str, str, set[str]], Treatment] = field(default=lambda *_: "forward")


@contextmanager
def awkward_proxy(upstream: S3Server) -> Iterator[AwkwardProxy]:
    proxy = AwkwardProxy(upstream)

    class Handler(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline()
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            forward(self, proxy, upstream)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    proxy.server = S3Server(f"http://127.0.0.1:{server.server_port}")
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def forward(request: BaseHTTPRequestHandler, proxy: AwkwardProxy, upstream: S3Server) -> None:
    request.close_connection = True
    body = request.rfile.read(int(request.headers.get("content-length", 0)))
    treatment = proxy.treat(request.command, request.path, {name.lower() for name in request.headers})
    if treatment == "not implemented":
        request.send_response(501)
        request.send_header("content-length", "0")
        request.end_headers()
        return
    connection = http.client.HTTPConnection(urlsplit(upstream.endpoint).netloc)
    # As they came, the host included: the signature covers them.
    headers = {name: value for name, value in request.headers.items() if treatment != f"ignore {name.lower()}"}
    connection.request(request.command, request.path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if treatment == "lose the answer":
        return
    request.send_response(answer.status)
    for name, value in answer.getheaders():
        if name.lower() not in ("connection", "transfer-encoding", "content-length"):
            request.send_header(name, value)
    length = answer.getheader("content-length") if request.command == "HEAD" else str(len(content))
    request.send_header("content-length", length or "0")
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(content[: len(content) // 2] if treatment == "break off" else content)
