"""nginx and HAProxy as processes before a gateway, configured as their manuals do it."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

needs_proxies = pytest.mark.skipif(
    shutil.which("nginx") is None or shutil.which("haproxy") is None,
    reason="nginx or HAProxy is not installed (Debian: apt-get install nginx haproxy)",
)

# `source` is the address from which a proxy asks what is behind it.
NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/1; proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3;
    uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://{behind};
            proxy_bind {source};
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        }}
    }}
}}
"""
HAPROXY = """
defaults
    mode http
    timeout connect 60s
    timeout client 60s
    timeout server 60s
frontend all
    bind 127.0.0.1:{port}
    option forwardfor
    default_backend behind
backend behind
    source {source}
    server behind {behind}
"""


@contextmanager
def nginx(folder: Path, *, behind: str, source: str) -> Iterator[int]:
    """Yield the port of an nginx, which adds to `X-Forwarded-For` what it is sent there."""
    (folder / "nginx").mkdir()
    file = folder / "nginx.conf"
    command = ["nginx", "-e", "stderr", "-c", str(file)]
    with _listening(command, file, NGINX, folder=folder / "nginx", behind=behind, source=source) as port:
        yield port


@contextmanager
def haproxy(folder: Path, *, behind: str, source: str) -> Iterator[int]:
    """Yield the port of an HAProxy, which adds an `X-Forwarded-For` of its own to one that it is sent."""
    file = folder / "haproxy.conf"
    with _listening(["haproxy", "-db", "-f", str(file)], file, HAPROXY, behind=behind, source=source) as port:
        yield port


@contextmanager
def _listening(command: list[str], file: Path, configuration: str, **values: object) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file.write_text(configuration.format(port=port, **values))
    command = (
        ["nginx", "-e", "stderr", "-c", str(file)] if file.stem == "nginx" else ["haproxy", "-db", "-f", str(file)]
    )
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not _accepts(port):
            assert process.poll() is None, f"{command[0]} ended"
            time.sleep(0.005)  # a process that starts can only be polled
        yield port
    finally:
        process.kill()
        process.wait()


def _accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
