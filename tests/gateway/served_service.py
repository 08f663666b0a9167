"""A service as it is really run, with one route; `python -m tests.gateway.served_service` serves it on a free port."""

import asyncio

from fastapi import APIRouter, FastAPI, Request, Response
from pydantic_settings import SettingsConfigDict

from services.core.http.app import AppParts, create_app
from services.core.http.health import Health
from services.core.metrics import Metrics
from services.core.serving.server import run
from services.core.settings import ServiceSettings, read_settings


class EchoSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="FOVEA_EMBED_")

    port: int = 0


def create_echo(settings: ServiceSettings) -> FastAPI:
    router = APIRouter()

    @router.post("/embed")
    async def echo(request: Request) -> Response:
        body = await request.body()
        await asyncio.sleep(0.005)  # so that some requests are always in flight
        return Response(body)

    parts = AppParts(service="embed", title="Echo", metrics=Metrics("embed"), health=Health(), routers=[router])
    return create_app(settings, parts)


if __name__ == "__main__":
    raise SystemExit(run(create_echo, read_settings(EchoSettings)))
