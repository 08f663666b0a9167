"""A client of Fovea: `Client` for synchronous code, `AsyncClient` for asynchronous code."""

from fovea.client import AsyncClient, Client
from fovea.errors import FoveaError
from fovea.images import Image

__all__ = ["AsyncClient", "Client", "FoveaError", "Image"]
