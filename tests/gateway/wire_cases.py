"""Requests as bytes with their required outcomes: well-formed ones, and those that two parsers could read differently.

A request is known by its nonce, which is its `X-Request-ID`.
"""

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

MAX_BODY_BYTES = 20_000
# The service answers these before it has looked at the body.
EARLY_PATH = "/collections/early"
# The gateway has no route for it and says so before it reads.
UNKNOWN_PATH = "/nothing"


@dataclass(frozen=True)
class Sent:
    """One request as it is written, and what is promised of it.

    `statuses` are those that its answer may have; `reaches` is whether a service may see it, and then exactly as
    `method`, `target` and `body` say. After it the connection ends (`closes`), may end (`may_close`) or goes on.
    `is_whole` is false where its last bytes are never sent, so that no answer is due.
    """

    method: str
    target: str
    body: bytes
    wire: bytes
    statuses: frozenset[int]
    reaches: bool = True
    closes: bool = False
    may_close: bool = False
    is_whole: bool = True
    nonce: str = ""

    def named(self, nonce: str) -> "Sent":
        return replace(self, nonce=nonce, wire=self.wire.replace(b"NONCE", nonce.encode()))


OK = frozenset({200})
REFUSED = frozenset({400})
EARLY = frozenset({404})


@dataclass(frozen=True)
class Framing:
    """The framing of a body: the head's lines, the bytes that follow, and the guaranteed outcome."""

    lines: tuple[bytes, ...]
    bytes_: bytes
    body: bytes
    statuses: frozenset[int] = OK
    version: bytes = b"HTTP/1.1"
    closes: bool = False
    is_whole: bool = True
    extra: dict[str, bool] = field(default_factory=dict)


BODIES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            b"0\r\n\r\n",
            b"\r\n\r\nGET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
            b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n",
            b"x" * 5000,
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ]
    ),
)
EXTENSIONS = st.sampled_from([b"", b"", b";a", b";a=b", b';a="b\\"c"', b";" + b"a" * 300])
TRAILERS = st.lists(
    st.sampled_from(
        [
            b"X-Trailer: 1",
            b"X-Request-ID: of-a-trailer",
            b"Authorization: Bearer of-a-trailer",
            b"X-Fovea-Tenant: of-a-trailer",
            b"Host: of-a-trailer",
            b"Connection: close",
            b"Connection: Upgrade\r\nUpgrade: h2c",
            b"Expect: 100-continue",
        ]
    ),
    max_size=2,
)


def with_length(body: bytes) -> Framing:
    return Framing((b"Content-Length: %d" % len(body),), body, body)


@st.composite
def chunked(draw: st.DrawFn) -> Framing:
    body = draw(BODIES)
    wire, start = b"", 0
    while start < len(body):
        size = draw(st.integers(1, len(body) - start)) if draw(st.booleans()) else len(body) - start
        spelled = draw(st.sampled_from([b"%x", b"%X", b"000%x"])) % size
        wire += spelled + draw(EXTENSIONS) + b"\r\n" + body[start : start + size] + b"\r\n"
        start += size
    trailers = b"".join(line + b"\r\n" for line in draw(TRAILERS))
    coding = draw(st.sampled_from([b"chunked", b"Chunked", b"chunked "]))
    end = b"0" + draw(EXTENSIONS) + b"\r\n" + trailers + b"\r\n"
    return Framing((b"Transfer-Encoding: " + coding,), wire + end, body, closes=b"Connection: close" in trailers)


def no_body() -> Framing:
    return Framing((), b"", b"")


# What is refused by its head: whatever follows is read by nobody.
BAD_LINES = [
    (b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    (b"Transfer-Encoding: chunked", b"Content-Length: 5"),
    (b"Content-Length: 5", b"Content-Length: 5"),
    (b"Content-Length: 5", b"Content-Length: 0"),
    (b"Content-Length: 5, 5",),
    (b"Content-Length: +5",),
    (b"Content-Length: -5",),
    (b"Content-Length: 0x5",),
    (b"Content-Length: 5_0",),
    (b"Content-Length: 5 5",),
    (b"Content-Length:",),
    (b"Content-Length: 99999999999999999999",),
    (b"Content-Length: 5\r\n 0",),
    (b"Content-Length : 5",),
    (b"Content-Length\t: 5",),
    (b"Content-Length: 5\nX-A: b",),
    (b"Content-Length: 5\rX-A: b",),
    (b"Content-Length: 5\x00",),
    (b"Transfer-Encoding: identity",),
    (b"Transfer-Encoding: gzip, chunked",),
    (b"Transfer-Encoding: chunked, gzip",),
    (b"Transfer-Encoding: chunked, chunked",),
    (b"Transfer-Encoding: xchunked",),
    (b"Transfer-Encoding: chunked;q=1",),
    (b"Transfer-Encoding:",),
    (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    (b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
    (b"Transfer-Encoding:\r\n chunked",),
    (b"Transfer-Encoding : chunked",),
    (b"Transfer_Encoding: chunked\n",),
    (b"X-A: b\r\n c",),
    (b"X-A: b\x00c",),
    (b"X-A: b\x7fc",),
    (b"X-A b",),
    (b": b",),
    (b"\x00: b",),
    (b"Host: b",),
    (b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 5"),
    (b"Connection: keep-alive, upgrade", b"Upgrade: websocket", b"Transfer-Encoding: chunked"),
    (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAM", b"Content-Length: 05"),
]
AFTER_A_BAD_HEAD = [
    b"",
    b"hello",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"\r\nGET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
]
BAD_CHUNKS = [
    b"5\r\nhello!\r\n0\r\n\r\n",
    b"5\nhello\n0\n\n",
    b"5 \r\nhello\r\n0\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"-5\r\nhello\r\n0\r\n\r\n",
    b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhello0\r\n\r\n",
    b"5\r\nhello\r\n0\r\nContent-Length: 5\r\n\r\n",
    b"5\r\nhello\r\n0\r\nX-A\r\n\r\n",
    b"g\r\n",
    b"\r\n0\r\n\r\n",
]


@st.composite
def bad_heads(draw: st.DrawFn) -> Framing:
    return Framing(draw(st.sampled_from(BAD_LINES)), draw(st.sampled_from(AFTER_A_BAD_HEAD)), b"", REFUSED, closes=True)


@st.composite
def bad_versions(draw: st.DrawFn) -> Framing:
    version = draw(
        st.sampled_from([b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.2", b"HTTP/1.1x", b"http/1.1", b"HTTP/1.1\nX: y"])
    )
    return Framing((), b"", b"", REFUSED, version=version, closes=True)


@st.composite
def bad_chunks(draw: st.DrawFn) -> Framing:
    wire = draw(st.sampled_from(BAD_CHUNKS))
    return Framing((b"Transfer-Encoding: chunked",), wire, b"", REFUSED, closes=True)


@st.composite
def short_bodies(draw: st.DrawFn) -> Framing:
    body = draw(st.binary(max_size=20))
    lines, wire = draw(
        st.sampled_from(
            [
                ((b"Content-Length: %d" % (len(body) + 5),), body),
                ((b"Transfer-Encoding: chunked",), b"20\r\n" + body),
                ((b"Transfer-Encoding: chunked",), b"0\r\n"),
                ((b"Transfer-Encoding: chunked",), b""),
            ]
        )
    )
    return Framing(lines, wire, b"", is_whole=False)


@st.composite
def old_versions(draw: st.DrawFn) -> Framing:
    """HTTP/1.0: answered and closed, and without transfer codings."""
    framing = with_length(draw(BODIES))
    lines = (*framing.lines, *draw(st.sampled_from([(), (b"Connection: keep-alive",), (b"Expect: 100-continue",)])))
    if draw(st.booleans()):
        return replace(framing, lines=lines, version=b"HTTP/1.0", closes=True)
    return Framing((b"Transfer-Encoding: chunked",), b"0\r\n\r\n", b"", REFUSED, version=b"HTTP/1.0", closes=True)


@st.composite
def upgrades(draw: st.DrawFn) -> Framing:
    """Requests for an upgrade: without a body they are answered as if they asked for none; later bytes stay unread."""
    protocol = draw(st.sampled_from([b"h2c", b"websocket", b"TLS/1.0, HTTP/1.1"]))
    lines = (b"Connection: Upgrade", b"Upgrade: " + protocol, *draw(st.sampled_from([(), (b"Content-Length: 0",)])))
    after = draw(st.sampled_from([b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x81\x05hello"]))
    return Framing(lines, after, b"", closes=True)


BODY_FRAMINGS = st.one_of(
    BODIES.map(with_length),
    chunked(),
    st.just(no_body()),
    BODIES.map(with_length).map(lambda framing: replace(framing, lines=(*framing.lines, b"Expect: 100-continue"))),
    chunked().map(lambda framing: replace(framing, lines=(*framing.lines, b"Expect: 100-continue"))),
    # Not an upgrade without `Connection: upgrade`.
    BODIES.map(with_length).map(lambda framing: replace(framing, lines=(*framing.lines, b"Upgrade: h2c"))),
    BODIES.map(with_length).map(
        lambda framing: replace(framing, lines=(b"Connection: content-length, x-request-id", *framing.lines))
    ),
    BODIES.map(with_length).map(
        lambda framing: replace(framing, lines=(*framing.lines, b"Connection: close"), closes=True)
    ),
    old_versions(),
    upgrades(),
    bad_heads(),
    bad_heads(),
    bad_chunks(),
    bad_versions(),
)
# What crosses a proxy's head untouched, dropped or replaced, and changes no framing.
HARMLESS = st.lists(
    st.sampled_from(
        [
            b"Accept: */*",
            b"Keep-Alive: timeout=5",
            b"Proxy-Connection: keep-alive",
            b"TE: trailers",
            b"X-A: \t padded \t",
            b"X-Obs: \xe4\xff",
            b"X-Fovea-Client: forged",
            b"X-Fovea-Tenant: forged",
            b"X-Forwarded-For: 203.0.113.9",
            b"Content-Type: application/json",
            b"Trailer: X-Trailer",
        ]
    ),
    max_size=3,
    unique=True,
)
PLACES = st.sampled_from(
    [
        ("POST", "/embed"),
        ("POST", "/v1/embeddings?a=b"),
        ("POST", "/embed?condition=what+is%20it%3F&condition=%00"),
        ("GET", "/collections?x=/../y"),
        ("GET", "/collections/a%2Fb/../%2e%2e/metrics"),
        ("PUT", '/collections//x;y=z?q="<>{}|^`'),
        ("DELETE", "/collections/x"),
        ("POST", "/collections/x/nope"),
    ]
)


def write(method: str, target: str, framing: Framing, harmless: list[bytes], *, url: str = "") -> bytes:
    head = b"%b %b %b" % (method.encode(), (url or target).encode(), framing.version)
    lines = [head, b"Host: fovea.example", b"X-Request-ID: NONCE", *harmless, *framing.lines]
    return b"\r\n".join(lines) + b"\r\n\r\n" + framing.bytes_


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    """Any request but one that is cut off."""
    framing = draw(BODY_FRAMINGS)
    method, target = draw(PLACES)
    url = draw(st.sampled_from(["", "", "", f"http://other.example:81{target}"]))
    wire = write(method, target, framing, draw(HARMLESS), url=url)
    is_ok = framing.statuses == OK
    return Sent(method, target, framing.body, wire, framing.statuses, reaches=is_ok, closes=framing.closes)


@st.composite
def tunnels(draw: st.DrawFn) -> Sent:
    wire = draw(
        st.sampled_from([b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", b"CONNECT /embed HTTP/1.1\r\nHost: a\r\n\r\n"])
    )
    return Sent(
        "CONNECT", "", b"", wire + b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", REFUSED, reaches=False, closes=True
    )


@st.composite
def early_answers(draw: st.DrawFn) -> Sent:
    """Requests answered before their body is read: whether it had arrived by then decides about the connection."""
    framing = draw(st.one_of(BODIES.map(with_length), chunked(), st.just(with_length(b"x" * (MAX_BODY_BYTES - 1)))))
    target = draw(st.sampled_from([EARLY_PATH, UNKNOWN_PATH]))
    wire = write("POST", target, framing, draw(HARMLESS))
    return Sent(
        "POST", target, framing.body, wire, EARLY, reaches=target == EARLY_PATH, closes=framing.closes, may_close=True
    )


@st.composite
def large_bodies(draw: st.DrawFn) -> Sent:
    framing = with_length(b"x" * (MAX_BODY_BYTES + draw(st.sampled_from([1, 70_000]))))
    if draw(st.booleans()):
        size = len(framing.body)
        framing = Framing(
            (b"Transfer-Encoding: chunked",), b"%x\r\n%b\r\n0\r\n\r\n" % (size, framing.body), framing.body
        )
    wire = write("POST", "/embed", framing, [])
    return Sent("POST", "/embed", framing.body, wire, frozenset({413}), reaches=False, may_close=True)


@st.composite
def cut_off(draw: st.DrawFn) -> Sent:
    wire = write("POST", "/embed", draw(short_bodies()), draw(HARMLESS))
    return Sent("POST", "/embed", b"", wire, OK, reaches=False, is_whole=False)


LAST = Sent(
    "GET", "/collections", b"", write("GET", "/collections", no_body(), [b"Connection: close"]), OK, closes=True
)


@dataclass(frozen=True)
class Case:
    """The requests of one connection, and the places where their bytes are split."""

    requests: tuple[Sent, ...] = field(repr=False)
    cuts: tuple[int, ...]

    def pieces(self) -> list[bytes]:
        wire = b"".join(sent.wire for sent in self.requests)
        places = sorted({cut % (len(wire) + 1) for cut in self.cuts})
        return [wire[start:end] for start, end in zip([0, *places], [*places, len(wire)], strict=True)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    some = st.one_of(requests(), requests(), requests(), early_answers(), large_bodies(), tunnels())
    drawn = draw(st.lists(some, min_size=1, max_size=4))
    # Without it nobody would know that no further answer comes.
    last = draw(cut_off()) if draw(st.integers(0, 7)) == 0 else LAST
    sent = tuple(one.named(f"n{number}") for number, one in enumerate([*drawn, last]))
    return Case(sent, tuple(draw(st.lists(st.integers(0, 2**15), max_size=6))))
