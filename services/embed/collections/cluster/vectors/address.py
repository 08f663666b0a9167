"""The address of Milvus in the settings, in which a user and a password may stand."""

from urllib.parse import unquote, urlsplit, urlunsplit

from services.embed.collections.cluster.vectors.milvus import MilvusVectors


def connection_to(url: str) -> MilvusVectors:
    """Prepare a connection; a user and a password in the URL are sent as Milvus's token."""
    parts = urlsplit(url)
    token = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    address = parts.netloc.rpartition("@")[2]
    return MilvusVectors(urlunsplit(parts._replace(netloc=address)), token)
