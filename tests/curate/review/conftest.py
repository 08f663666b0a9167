"""Reviews within the test's process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from services.curate.review.command import ReviewSettings, create_review_app
from services.curate.review.review import Review
from services.curate.review.routes import Access
from services.curate.review.schemas import ImageFolder
from services.curate.review.tasks import TASKS, TaskName
from services.curate.review.verdicts import VerdictFile
from services.jobs.sugarcrepe import Pair
from tests.curate.review.reviews import PAIRS, write_review

Open = Callable[..., TestClient]


@pytest.fixture
def open_review(tmp_path: Path) -> Iterator[Open]:
    """Open a client of a review of some pairs, on the same database each time."""
    write_review(tmp_path)
    with ExitStack() as opened:

        def start(
            pairs: Sequence[Pair] = PAIRS[:3],
            *,
            task: TaskName = "validity",
            reviewers_per_pair: int = 2,
            token: str | None = None,
            host: str = "127.0.0.1",
            clock: Callable[[], float] = lambda: 0.0,
        ) -> TestClient:
            opened.pop_all().close()
            file = opened.enter_context(VerdictFile(tmp_path / "verdicts.sqlite", pairs, TASKS[task]))
            review = Review(pairs, file, reviewers_per_pair, clock=clock)
            images = ImageFolder(tmp_path / "images", (pair.filename for pair in pairs))
            app = create_review_app(ReviewSettings(host=host, port=0), review, images, Access(token))
            return opened.enter_context(TestClient(app, base_url="http://localhost"))

        yield start
