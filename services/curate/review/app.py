"""The application that serves a review, from the parts that every server of the project has."""

from typing import ClassVar

from fastapi import FastAPI
from pydantic_settings import SettingsConfigDict

from services.core.http.app import AppParts, create_app
from services.core.http.health import Health
from services.core.metrics import Metrics
from services.core.settings import ProcessSettings
from services.curate.review.access import Access
from services.curate.review.image_folder import ImageFolder
from services.curate.review.review import Review
from services.curate.review.routes import own_page_router, review_router, session_router


class ReviewSettings(ProcessSettings):
    """Settings of the server, which come from the command line only."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(env_prefix="FOVEA_CURATE_")
    port_options: ClassVar[tuple[str, ...]] = ("--port",)

    log_level: str = "warning"  # type: ignore[assignment]
    max_body_bytes: int = 64 * 1024


def create_review_app(settings: ProcessSettings, review: Review, images: ImageFolder, access: Access) -> FastAPI:
    """Create the application. The page may be linked to from elsewhere; all else answers to the page alone."""
    return create_app(
        settings,
        AppParts(
            service="curate",
            title="Review of hard negatives",
            metrics=Metrics("curate"),
            health=Health(),
            routers=[own_page_router(), session_router(access), review_router(review, images, access)],
            linked_paths=frozenset({"/"}),
        ),
    )
