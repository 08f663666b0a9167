"""Files as they are: every command that reads a file gets the same bad ones, and answers in words."""

import gzip
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from services.cli.main import app
from services.jobs.sugarcrepe import KINDS

ACCENT = "é"  # stands in a text of every good file


def lines(*records: object) -> str:
    return "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)


CAPTION = f"A white dog in a café{ACCENT}"
PAIR = {"id": "a", "kind": "replace_obj", "filename": "a.jpg", "caption": CAPTION, "negative_caption": "A black cat"}
COCO = {
    "images": [{"id": 1, "file_name": "a.jpg"}],
    "annotations": [{"id": 2, "image_id": 1, "caption": CAPTION}],
}
CHOICES = json.dumps(
    {"0": {"filename": "a.jpg", "caption": CAPTION, "negative_caption": "A black cat"}}, ensure_ascii=False
)
VALSE = json.dumps(
    {
        "0": {
            "caption": CAPTION,
            "foil": "A black cat",
            "mturk": {"caption": 3},
            "image_file": "a.jpg",
            "dataset": "coco2017",
        }
    },
    ensure_ascii=False,
)
ARO = f"\ttitle\tneg_caption\n0\t{CAPTION}\t['A black cat']\n"
SCORES = json.dumps(
    [{"judge": ACCENT, "benchmark": "mine", "scores": {"replace_obj": 50.0}, "sizes": {"replace_obj": 2}}],
    ensure_ascii=False,
)
JUDGEMENT = lines({"form": f"SWAP {ACCENT}", "quality": "grammar", "better": "tie"})
TABLE = f"model,imagenet,{ACCENT}\na,60,80\nb,70,85\nc,75,95\nd,80,97\n"
LLAVA = json.dumps(
    [{"image": "a.jpg", "conversations": [{"from": "human", "value": ACCENT}, {"from": "gpt", "value": "Yes"}]}],
    ensure_ascii=False,
)
RECIPE = f'name = "{ACCENT}"\noutput = "out"\n[captions]\nfile = "nowhere.jsonl"\n[generate]\nmethod = "rules"\n'
TASK = f"task: tickets\nfields: [body]\nlabels: [bug, '{ACCENT}']\n"
ROWS = lines(*({"body": f"{number} {ACCENT}", "label": ("bug", "idea")[number % 2]} for number in range(40)))
QUESTION = lines(
    {"question": f"Who {ACCENT}?", "answers": ["Ada"], "ctxs": [{"title": "A", "text": "Ada", "isgold": True}]}
)
DECISIONS = lines(
    *(
        {
            "request": {
                "input": f"{number} {ACCENT}",
                "questions": [{"type": "predicate", "name": "spam", "instructions": "It is spam."}],
            },
            "response": {"answers": [{"type": "predicate", "probability": number % 2}]},
        }
        for number in range(40)
    )
)
ARTICLES = f"context,question,answer\nAda is here,Who {ACCENT}?,Ada\n"
RECORD = lines({"id": "0", "images": ["a.jpg"], "captions": [CAPTION, "A black cat"]})
WINOGROUND = lines({"id": 0, "image_0": "a", "image_1": "b", "caption_0": CAPTION, "caption_1": "A black cat"})
KEYS = json.dumps({"keys": [{"name": ACCENT, "sha256": "0" * 64, "scopes": ["embed"]}]}, ensure_ascii=False)
OF_EMBED = json.dumps([{"embedder": ACCENT, "benchmark": "mmvp", "scores": {"Text": 1.0}}], ensure_ascii=False)
OF_PREDICT = json.dumps(
    [
        {
            **{"data": ACCENT, "labels": "human", "model": "tiny", "method": "standard", "fraction": 1.0},
            **{"teacher": None, "scores": {"0": {"test_accuracy": 0.5, "num_train": 9, "num_parameters": 9}}},
        }
    ],
    ensure_ascii=False,
)
GENECIS = json.dumps(
    [{"condition": ACCENT, "reference": {"val_image_id": 1}, "target": {"val_image_id": 2}, "gallery": []}],
    ensure_ascii=False,
)


RATIONALE = lines(
    {
        **{"id": "0", "row": 0, "prompt": "", "arguments": "", "model": ACCENT, "output": "", "finish_reason": None},
        **{"rationale": "", "label": "", "problem": None, "prompt_tokens": 1, "completion_tokens": 1},
    }
)
IMAGECODE = json.dumps({"set": {"0": ACCENT}}, ensure_ascii=False)
ANSWERS = json.dumps({ACCENT: {"replace_obj": {"1": True}}}, ensure_ascii=False)


@dataclass(frozen=True)
class Given:
    """A command, the file that it reads, and that file's good content; FOLDER and FILE stand for the test's own,
    TO_OUT for the options of a training's end.

    `then` is what is told once the file is read: the result, or what else is missing.
    """

    command: str
    file: str
    text: str
    then: str


COMPOSITIONALITY = "--images FOLDER --model nowhere"
GIVEN = [
    Given(
        "curate generate FILE --method rules --output FOLDER/out",
        "captions.jsonl",
        lines({"filename": "a.jpg", "caption": CAPTION}),
        "1 candidate|candidates",
    ),
    Given(
        "curate generate FILE --method rules --output FOLDER/out",
        "coco.json",
        json.dumps(COCO, ensure_ascii=False),
        "candidates",
    ),
    Given("curate refine FILE --output FOLDER/out --model m=/nowhere", "pairs.jsonl", lines(PAIR), "nowhere"),
    Given("curate audit FILE --model m=/nowhere", "pairs.jsonl", lines(PAIR), "nowhere"),
    Given(
        "curate audit FILE --model m=/nowhere --caption-field caption --negative-field negative_caption",
        "mine.jsonl",
        lines(PAIR),
        "nowhere",
    ),
    Given("curate audit FILE --model m=/nowhere", "valse.json", VALSE, "nowhere"),
    Given("curate audit FILE --model m=/nowhere", "choices.json", CHOICES, "nowhere"),
    Given("curate audit FILE --model m=/nowhere", "aro.tsv", ARO, "nowhere"),
    Given("curate measure counts FILE", "pairs.jsonl", lines(PAIR), "replace_obj"),
    Given("curate measure quality FILE FILE --model m=/nowhere", "pairs.jsonl", lines(PAIR), "nowhere"),
    Given("curate measure humans FILE", "judgements.jsonl", JUDGEMENT, "SWAP"),
    Given("curate measure gains FILE --control nobody", "scores.json", SCORES, "nobody"),
    Given("curate measure correlate FILE --x imagenet", "table.csv", TABLE, "imagenet"),
    Given("curate measure correlate FILE --x imagenet", "correlated.json", SCORES, "imagenet"),
    Given("curate review FILE --database FOLDER/verdicts.db --export FOLDER/out.jsonl", "pairs.jsonl", lines(PAIR), ""),
    Given("curate run FILE", "recipe.toml", RECIPE, "nowhere"),
    Given(
        "train focallens --llava FILE --output FOLDER/out --base nowhere --no-publish", "llava.json", LLAVA, "nowhere"
    ),
    Given(
        "train focallens-mllm --llava FILE --output FOLDER/out --base nowhere --no-publish",
        "llava.json",
        LLAVA,
        "nowhere",
    ),
    Given(
        "train distill --task FILE --data FOLDER/nowhere --model tiny TO_OUT",
        "task.yaml",
        TASK,
        "nowhere",
    ),
    Given(
        "train distill --task FOLDER/good.yaml --data FILE --model /nowhere --method standard TO_OUT",
        "rows.jsonl",
        ROWS,
        "nowhere",
    ),
    Given(
        "train distill svamp --data FOLDER/nowhere --recipe FILE --model tiny TO_OUT",
        "recipe.toml",
        f"# {ACCENT}\nalpha = 0.5\n",
        "nowhere",
    ),
    Given(
        "train fsc-clip --images FILE --base nowhere TO_OUT",
        "images.jsonl",
        lines({"image": "a.jpg", "caption": CAPTION}),
        "nowhere",
    ),
    Given(
        "train fsc-clip --images FILE --base nowhere TO_OUT",
        "images.tsv",
        f"filepath\ttitle\na.jpg\t{CAPTION}\n",
        "nowhere",
    ),
    Given(
        "train fsc-clip --images FOLDER/nowhere.tsv --stored FILE --base nowhere TO_OUT",
        "pairs.jsonl",
        lines(PAIR),
        "nowhere",
    ),
    Given(
        "train fsc-clip --images FOLDER/nowhere.tsv --recipe FILE --base nowhere TO_OUT",
        "recipe.toml",
        f"# {ACCENT}\nalpha = 0.5\n",
        "nowhere",
    ),
    Given("evaluate focallens table FILE", "results.json", OF_EMBED, ""),
    Given(
        "evaluate focallens genecis --data FOLDER --coco FOLDER --focus object --checkpoint /nowhere",
        "focus_object.json",
        GENECIS,
        "nowhere",
    ),
    Given("evaluate distill table FILE", "results.json", OF_PREDICT, ""),
    Given("evaluate compositionality table FILE", "results.json", SCORES, ""),
    Given(f"evaluate compositionality pairs --data FILE {COMPOSITIONALITY}", "pairs.jsonl", lines(PAIR), "nowhere"),
    Given(f"evaluate compositionality records --data FILE {COMPOSITIONALITY}", "records.jsonl", RECORD, "nowhere"),
    Given(
        f"evaluate compositionality winoground --data FOLDER {COMPOSITIONALITY}",
        "examples.jsonl",
        WINOGROUND,
        "nowhere",
    ),
    Given("evaluate litm /nowhere --data FILE", "questions.jsonl", QUESTION, "nowhere"),
    Given("calibrate /nowhere --data FILE --output FOLDER/out", "questions.jsonl", QUESTION, "nowhere"),
    Given(
        "distill extract --task FILE --data FOLDER/nowhere --model tiny --output FOLDER/out --model m",
        "task.yaml",
        TASK + "prompt: {instruction: Read.}\n",
        "nowhere",
    ),
    Given(
        "distill extract --task FOLDER/good.yaml --data FILE --output FOLDER/out --model m --show-prompt",
        "rows.jsonl",
        ROWS,
        "Read.",
    ),
    Given("distill decisions FILE --model /nowhere TO_OUT", "log.jsonl", DECISIONS, "nowhere"),
    Given("keys list --file FILE", "keys.json", KEYS, "embed"),
    Given(
        "store import services/predict/starter/inferences --name x --task FILE",
        "task.yaml",
        f"# {ACCENT}\n" + TASK.replace(ACCENT, "idea"),
        "FOVEA_PREDICT_MODELS",
    ),
    Given(
        "train distill --task FOLDER/good.yaml --data FOLDER/good.jsonl --rationales FILE --model /nowhere TO_OUT",
        "rationales.jsonl",
        RATIONALE,
        "is not row 0 of the data",
    ),
    Given(
        "evaluate focallens sugarcrepe --data FOLDER --coco FOLDER --checkpoint /nowhere",
        "swap_obj.json",
        CHOICES,
        "nowhere",
    ),
    Given(
        "evaluate focallens celeba --data FOLDER --checkpoint /nowhere",
        "list_eval_partition.txt",
        f"{ACCENT}.jpg 2\n",
        "list_attr",
    ),
    Given(
        "evaluate focallens fine-grained --data FOLDER --dataset Food --checkpoint /nowhere",
        "food-101/meta/test.txt",
        f"{ACCENT}/1\n",
        "nowhere",
    ),
    Given(
        f"evaluate compositionality sugarcrepe --data FOLDER {COMPOSITIONALITY}", "swap_obj.json", CHOICES, "nowhere"
    ),
    Given(f"evaluate compositionality valse --data FOLDER {COMPOSITIONALITY}", "existence.json", VALSE, "missing"),
    Given(
        f"evaluate compositionality imagecode --data FILE {COMPOSITIONALITY}", "valid_data.json", IMAGECODE, "nowhere"
    ),
    Given(
        "evaluate compositionality sugarcrepe --data FOLDER --judge answers --model FILE",
        "answers.json",
        ANSWERS,
        "no answer",
    ),
    Given(
        "evaluate compositionality pairs --data FILE --images FOLDER --model nowhere --output FOLDER/results.json",
        "pairs.jsonl",
        lines(PAIR),
        "nowhere",
    ),
    Given(
        "evaluate compositionality pairs --data FOLDER/nowhere.jsonl --output FILE", "scores.json", SCORES, "nowhere"
    ),
    Given(
        "distill extract esnli --data FILE --output FOLDER/out --model m --show-prompt",
        "rows.jsonl",
        lines({"premise": ACCENT, "hypothesis": "B"}),
        "messages",
    ),
    Given(
        "distill extract esnli --data FOLDER/nowhere --prompts FILE --output FOLDER/out --model m",
        "prompts.yaml",
        f"# {ACCENT}\n",
        "prompts.yaml",
    ),
    Given(
        "curate generate FOLDER/captions.jsonl --prompts FOLDER/prompts --model m --output FOLDER/out --show-prompt",
        "prompts/replace_obj.toml",
        f"# {ACCENT}\n",
        "replace_obj.toml",
    ),
    Given("evaluate litm /nowhere --data FILE", "articles.csv", ARTICLES, "nowhere"),
]


def in_text(text: str, value: str) -> str:
    """Put a JSON value in the place of the text with the accent."""
    return re.sub(rf'"[^"]*{ACCENT}[^"]*"', lambda _: value, text, count=1)


def packed(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


GOOD: dict[str, Callable[[str], bytes]] = {
    "as it should be": lambda text: text.encode(),
    "a byte order mark": lambda text: text.encode("utf-8-sig"),
    "ends of lines of Windows": lambda text: text.replace("\n", "\r\n").encode(),
    "compressed": packed,
}
BAD: dict[str, Callable[[str], bytes]] = {
    "Windows' encoding": lambda text: text.encode("cp1252"),
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16 without a mark": lambda text: text.encode("utf-16-le"),
    "half a surrogate pair as bytes": lambda text: text.replace(ACCENT, "\ud83d").encode("utf-8", "surrogatepass"),
    "a cut gzip file": lambda text: packed(text)[:-9],
    "a damaged gzip file": lambda text: packed(text)[:12] + b"\xff" * 9 + packed(text)[21:],
    "no text": lambda _: b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "a web page": lambda _: f"<!doctype html>\n<title>Not found {ACCENT}</title>\n".encode(),
    "nested too deeply": lambda _: b"[" * 100_000,
}
BAD_JSON: dict[str, Callable[[str], bytes]] = {
    "half a surrogate pair": lambda text: text.replace(ACCENT, "\\ud83d").encode(),
    "null for a text": lambda text: in_text(text, "null").encode(),
    "a number for a text": lambda text: in_text(text, "7.5").encode(),
    "an object for a text": lambda text: in_text(text, "{}").encode(),
    "NaN": lambda text: in_text(text, "NaN").encode(),
    "a repeated key": lambda text: text.replace("{", '{"twice": 1, "twice": 2, ', 1).encode(),
    "a list for a record": lambda _: b"[[1]]\n",
    "a torn end": lambda text: text.rstrip()[: -len(text) // 3].encode(),
}
# What some formats allow, and what is no text of a name: an answer in words is all that is asked for.
UNUSUAL: dict[str, Callable[[str], bytes]] = {
    "empty": lambda _: b"",
    "blank": lambda _: b" \n\n",
    "a long field": lambda text: text.replace(ACCENT, "x" * 200_000).encode(),
    "a torn end": lambda text: text.encode()[: len(text.encode()) * 2 // 3],
    "NUL at the end": lambda text: text.encode() + b"\0",
}


class Commands:
    """Runs a command in this process on a file with some content."""

    def __init__(self, given: Given, folder: Path) -> None:
        self._given = given
        self._folder = folder
        self._number = 0

    def run(self, kind: str) -> Result:
        """Run the command on its file of this kind, in a new folder."""
        self._number += 1
        folder = self._folder / str(self._number)
        shutil.copytree(self._folder / "beside", folder)
        file = folder / self._given.file
        file.parent.mkdir(parents=True, exist_ok=True)
        if kind == "a folder":
            file.unlink(missing_ok=True)
            file.mkdir()
        elif kind != "missing":
            file.write_bytes({**GOOD, **BAD, **BAD_JSON, **UNUSUAL}[kind](self._given.text))
        told = self._given.command.replace("TO_OUT", "--output FOLDER/out --no-publish")
        told = told.replace("FILE", str(file)).replace("FOLDER", str(folder))
        return CliRunner().invoke(app, told.split())


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"file://{tmp_path_factory.mktemp('store')}"


@pytest.fixture(params=GIVEN, ids=lambda given: f"{' '.join(given.command.split()[:3])} {given.file}")
def given(request: pytest.FixtureRequest) -> Given:
    found: Given = request.param
    return found


@pytest.fixture
def commands(given: Given, tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("FOVEA_STORE_URL", store_url)
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "good.yaml").write_text(TASK.replace(ACCENT, "idea") + "prompt: {instruction: Read.}\n")
    (beside / "good.jsonl").write_text(ROWS)
    (beside / "results.json").write_text(SCORES)
    (beside / "captions.jsonl").write_text(lines({"filename": "a.jpg", "caption": CAPTION}))
    (beside / "set").mkdir()
    for number in range(2):
        (beside / "set" / f"img{number}.jpg").touch()
    for kind in KINDS:
        (beside / f"{kind}.json").write_text(CHOICES)
    return Commands(given, tmp_path)


def fault(result: Result, file: str) -> str | None:
    """What is wrong with the end of a command that should name its file."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return f"a traceback: {result.exception!r}"
    if "Traceback" in result.output or "Aborted" in result.output:
        return result.output
    if result.exit_code == 0:
        return f"taken as good: {result.output}"
    return None if Path(file).name in result.output and len(result.output) < 2500 else f"not named: {result.output}"


def test_a_good_file_is_read_however_it_is_stored(given: Given, commands: Commands) -> None:
    results = {kind: commands.run(kind) for kind in GOOD}
    assert {kind: result.output for kind, result in results.items() if not re.search(given.then, result.output)} == {}


def test_a_bad_file_is_named_in_a_line(given: Given, commands: Commands) -> None:
    kinds = [*BAD, *(BAD_JSON if given.file.endswith((".json", ".jsonl")) else ())]
    faults = {kind: fault(commands.run(kind), given.file) for kind in kinds}
    assert {kind: told for kind, told in faults.items() if told} == {}


def test_an_unusual_file_is_read_or_refused_in_words(given: Given, commands: Commands) -> None:
    faults = {kind: fault(commands.run(kind), given.file) for kind in (*UNUSUAL, "a folder", "missing")}
    assert {kind: told for kind, told in faults.items() if told and told.startswith("a traceback")} == {}
