"""The predict service in this process, over a store with tiny students of three tasks."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.predict.app import create_predict
from services.predict.model.task_description import TaskDescription
from services.predict.settings import PredictSettings
from services.predict.tasks import CQA, ESNLI, RELEASED_PREFIXES, SVAMP, Task
from tests.embed.tiny import wait_until_ready
from tests.predict.tiny_students import save_student

REVIEWS = Task("reviews", ("text",), "\n", labels=("good", "bad"))
TASKS = (ESNLI, CQA, SVAMP, REVIEWS)
MODELS = ",".join(f"tiny-{task.name}" for task in TASKS)
METRICS = {"accuracy": 0.5}
STATEMENT = "It has random weights and knows nothing."
MAX_INPUT_TOKENS = 120

PAIR = {"premise": "A man is walking a dog.", "hypothesis": "A person is outside."}
QUESTION: dict[str, Any] = {"question": "Where would you keep the milk?", "choices": ["fridge", "garden", "school"]}
PROBLEM = {"body": "Each box has 5 apples.", "question": "How many apples are there in 4 boxes?"}


def save_task(folder: Path, task: Task, *, seed: int = 0, max_input_tokens: int = MAX_INPUT_TOKENS) -> Path:
    """A tiny student of a task; one of SVAMP or REVIEWS has no rationales."""
    description = TaskDescription.of(
        task,
        RELEASED_PREFIXES,
        has_rationales=task in (ESNLI, CQA),
        max_target_tokens=12,
        max_input_tokens=max_input_tokens,
    )
    return save_student(folder, description.model_dump(mode="json"), spread=1.0, seed=seed)


def publish(store_url: str, folder: Path, task: Task, *, seed: int = 0, **limits: int) -> str:
    """A student as the version `latest` of `tiny-<task>`; returns its id."""
    info = CheckpointInfo(kind="t5-student", metrics=METRICS, statement=STATEMENT)
    checkpoint = save_task(folder / f"{task.name}-{seed}", task, seed=seed, **limits)
    return Store.open(store_url).publish(f"tiny-{task.name}", checkpoint, info).id


def publish_tiny(folder: Path) -> str:
    """A store below `folder` that holds a student of each task; returns its URL."""
    store_url = (folder / "store").as_uri()
    for task in TASKS:
        publish(store_url, folder, task)
    return store_url


@contextmanager
def served_tiny(store_url: str, folder: Path, **settings: Any) -> Iterator[TestClient]:
    """A client of the service, once that answers."""
    given = {"models": MODELS, "device": "cpu", "num_threads": 1, **settings}
    served = PredictSettings(store_url=store_url, checkpoint_cache_dir=folder / "checkpoints", **given)
    with TestClient(create_predict(served), raise_server_exceptions=False, base_url="http://localhost") as client:
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
        yield client
