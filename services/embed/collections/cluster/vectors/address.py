"""The address of Milvus in the settings, in which a user and a password may stand."""

from urllib.parse import unquote, urlsplit, urlunsplit

from services.embed.collections.cluster.vectors.milvus import MilvusVectors


def address_of(url: str) -> str:
    """Return the host with its port, without user and password."""
    return urlsplit(url).netloc.rpartition("@")[2]


def connection_to(url: str) -> MilvusVectors:
    """Prepare a connection; a user and a password in the URL are sent as Milvus's token."""
    parts = urlsplit(url)
    token = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    return MilvusVectors(urlunsplit(parts._replace(netloc=address_of(url))), token)
