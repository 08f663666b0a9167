"""Overhead of the gateway per request, compared with nginx in front of the same service in the same run.

python -m benchmarks.gateway [--rounds 5] [--seconds 2]

Service, nginx (one worker) and gateway run side by side; each round loads all of them in turn, so that other work on
the machine affects them alike. Needs nginx; uses wrk where it is installed. The last line is JSON.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.http_load import Load, Measured, load_generator, measure
from benchmarks.record import record, summary
from benchmarks.served import free_port

PATHS = {"json": "/embed", "stream": "/generate"}
CONCURRENCIES = (1, 32)
ROUTES = ("direct", "nginx", "gateway")

NGINX_CONFIG = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log {folder}/access.log;
  client_body_temp_path {folder}/client;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream service {{ server 127.0.0.1:{service}; keepalive 64; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port};
    keepalive_requests 100000000;
    location / {{
      proxy_pass http://service;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""

# Median latency and throughput of every round, by path, concurrency and route.
Rounds = dict[tuple[str, int, str], list[Measured]]


@contextmanager
def running(command: list[str], port: int, folder: Path, **environment: str) -> Iterator[str]:
    """Start a process; yields its URL once it accepts connections. Its output goes to a file, as in production."""
    log = folder / f"{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environment})
    try:
        while not _takes_connections(port):
            if process.poll() is not None:
                raise RuntimeError(f"{command} ended: {log.read_text()}")
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _takes_connections(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def all_running(nginx: str, folder: Path) -> Iterator[dict[str, str]]:
    """The URL of each route to the same service."""
    service, proxy, gateway = free_port(), free_port(), free_port()
    config = folder / "nginx.conf"
    config.write_text(NGINX_CONFIG.format(folder=folder, service=service, port=proxy))
    upstream = f"http://127.0.0.1:{service}"
    settings = {
        "FOVEA_GATEWAY_PORT": str(gateway),
        "FOVEA_GATEWAY_EMBED_URLS": upstream,
        "FOVEA_GATEWAY_GENERATE_URLS": upstream,
    }
    with (
        running([sys.executable, "-m", "benchmarks.raw_service", str(service)], service, folder) as direct,
        running([nginx, "-c", str(config), "-e", str(folder / "error.log")], proxy, folder) as through_nginx,
        running([sys.executable, "-m", "gateway"], gateway, folder, **settings) as through_gateway,
    ):
        yield dict(zip(ROUTES, (direct, through_nginx, through_gateway), strict=True))


def measure_rounds(urls: dict[str, str], num_rounds: int, seconds: float) -> Rounds:
    rounds: Rounds = {}
    for url in urls.values():
        # Open connections and finish late imports before the first round.
        for path in PATHS.values():
            measure(url + path, Load(concurrency=32, duration_s=1))
    for _ in range(num_rounds):
        for name, path in PATHS.items():
            for concurrency in CONCURRENCIES:
                for route, url in urls.items():
                    measured = measure(url + path, Load(concurrency, seconds))
                    rounds.setdefault((name, concurrency, route), []).append(measured)
    return rounds


def figures(rounds: Rounds) -> dict[str, Any]:
    """Summarise added median latency without load, and throughput relative to nginx's under load, round by round."""
    alone, crowd = CONCURRENCIES
    result: dict[str, Any] = {}
    for name in PATHS:
        for route in ROUTES[1:]:
            pairs = zip(rounds[name, alone, route], rounds[name, alone, "direct"], strict=True)
            result[f"{name}_{route}_added_p50_us"] = summary(
                [through.p50_us - direct.p50_us for through, direct in pairs]
            )
        for route in ROUTES:
            throughputs = [measured.requests_per_s for measured in rounds[name, crowd, route]]
            result[f"{name}_{route}_requests_per_s"] = summary(throughputs)
        pairs = zip(rounds[name, crowd, "gateway"], rounds[name, crowd, "nginx"], strict=True)
        result[f"{name}_throughput_ratio_to_nginx"] = summary(
            [gateway.requests_per_s / nginx.requests_per_s for gateway, nginx in pairs]
        )
    return result


def show(result: dict[str, Any]) -> None:
    table = Table(title="gateway beside nginx, median of rounds [quartiles]")
    for heading in (
        "path",
        "route",
        f"added p50 µs, concurrency {CONCURRENCIES[0]}",
        f"requests/s, concurrency {CONCURRENCIES[1]}",
    ):
        table.add_column(heading, justify="right")
    for name in PATHS:
        for route in ROUTES:
            added = result.get(f"{name}_{route}_added_p50_us")
            table.add_row(name, route, _cell(added) if added else "-", _cell(result[f"{name}_{route}_requests_per_s"]))
        table.add_row(name, "gateway / nginx", "", _cell(result[f"{name}_throughput_ratio_to_nginx"]))
    Console().print(table)


def _cell(figure: dict[str, Any]) -> str:
    return f"{figure['median']:g} [{figure['p25']:g}, {figure['p75']:g}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds, at least 2")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of load for each measurement")
    arguments = parser.parse_args()
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        raise SystemExit("nginx is not installed.")
    with tempfile.TemporaryDirectory() as folder, all_running(nginx, Path(folder)) as urls:
        result = figures(measure_rounds(urls, arguments.rounds, arguments.seconds))
    show(result)
    record("gateway", {"load_generator": load_generator(), "seconds": arguments.seconds, **result})


if __name__ == "__main__":
    main()
