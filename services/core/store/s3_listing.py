"""Listings of S3 buckets with keys that obstore can't read: it refuses every page that has one."""

import os
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode
from urllib.request import urlopen
from xml.etree import ElementTree

import obstore
import stamina
from obstore.store import from_url

TIMEOUT_S = 60
SIGNED_FOR = timedelta(minutes=10)
MAX_PAGE_BYTES = 16 * 1024 * 1024


def raw_listing(bucket: str, prefix: str, options: Mapping[str, Any]) -> Iterator[tuple[str, int, datetime]]:
    """Yield key, size and time of every object under keys that begin with `prefix`. Raises OSError, ValueError."""
    query = {"list-type": "2", "prefix": prefix}
    while True:
        page = _page(bucket, query, options)
        for found in page.iterfind("{*}Contents"):
            key, size, modified = (found.findtext(f"{{*}}{name}", "") for name in ("Key", "Size", "LastModified"))
            yield key, int(size), datetime.fromisoformat(modified)
        if not (token := page.findtext("{*}NextContinuationToken")):
            return
        query["continuation-token"] = token


@stamina.retry(on=OSError, attempts=4, wait_initial=0.1, wait_max=2)
def _page(bucket: str, query: Mapping[str, str], options: Mapping[str, Any]) -> ElementTree.Element:
    """Ask for one page by a URL that obstore signs, with the credentials and the endpoint that it finds itself."""
    # obstore signs addresses of objects alone: here the query stands in the bucket's name, and what obstore takes for
    # the object's name becomes the value of a parameter that S3 ignores.
    named = f"{bucket}?{urlencode(query, quote_via=quote)}&x-id="
    signed = {**options, "bucket": named, "virtual_hosted_style_request": "false"}
    skipped = str(options.get("skip_signature") or os.environ.get("AWS_SKIP_SIGNATURE", ""))
    is_anonymous = skipped.lower() in ("1", "true", "yes", "on")
    if is_anonymous:
        signed |= {"access_key_id": "none", "secret_access_key": "none"}
    open_url: Any = from_url  # its overloads expect the options of one kind of store
    url = obstore.sign(open_url(f"s3://{bucket}", config=signed), "GET", "ListObjectsV2", SIGNED_FOR)
    with urlopen(url.partition("&X-Amz-")[0] if is_anonymous else url, timeout=TIMEOUT_S) as answer:
        try:
            return ElementTree.fromstring(answer.read(MAX_PAGE_BYTES))
        except ElementTree.ParseError as error:
            raise ValueError(f"the listing is no XML: {error}") from None
