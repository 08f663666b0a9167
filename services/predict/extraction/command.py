"""`fovea distill extract`: ask a large model for the rationales and labels that students learn from.

Running the same command again continues where it stopped: inputs with a written answer are not asked about again.

Few-shot prompts contain demonstrations (x, r, y) before the input: chains of thought (Wei et al. 2022). Zero-shot
prompts describe the form of the output in words. `services.predict.data.teacher_outputs` parses both forms.
"""

import asyncio
import hashlib
import json
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import orjson
import stamina
import typer
from pydantic import ValidationError
from rich.console import Console

from services.core.openai_client import Answer, Api, Endpoint, EndpointClient, EndpointError, Patience
from services.core.printable import json_line, printable
from services.core.refusals import Refused, complaint_about
from services.core.text_files import BadFile
from services.jobs.inquiry import Inquiry, OutputError, RecordFile, Tokens, attended, digest_of
from services.jobs.interruption import one_line_errors
from services.jobs.options import command_line, json_object, key_in
from services.jobs.progress import Bars
from services.predict.data.inputs import Input, published_inputs, read_inputs, split_file
from services.predict.data.published import Split
from services.predict.data.rationale_file import Record, opened_rationales
from services.predict.data.task_file import GivenDemonstration, TaskFile, read_task_file, read_yaml
from services.predict.data.teacher_outputs import OWN_INPUT, read_output
from services.predict.model.task_description import StrictFile
from services.predict.tasks import ANSWER_MARKER, TASKS, FieldError, FieldValue, Task

EXIT_UNANSWERED = 3
EXIT_UNPARSED = 4
# Outputs needed to judge a teacher before all outputs have arrived.
MIN_JUDGED = 20
# Characters of an unparsed output that are shown.
MAX_SHOWN = 400
# Unless a request's additional fields have another.
TEMPERATURE = 0.0
# Prompt file of each task; both data sets of word problems share one.
PROMPT_FILES = {"esnli": "esnli", "anli1": "anli1", "cqa": "cqa", "svamp": "svamp", "asdiv": "svamp"}
LETTERS = string.ascii_lowercase

# For users' own tasks.
OWN_QUESTION = f"{OWN_INPUT}\n{{input}}\n\nAnswer:"
OWN_ANSWER = f"{{rationale}}{ANSWER_MARKER}{{label}}."
OWN_FORM = """{instruction}
{candidates}First give the reasoning in one or two sentences.
Then end with one sentence of exactly this form, and nothing after it:
{form}"""


class PromptFile(StrictFile):
    """The prompts of a task, as a YAML file holds them.

    `question` and `answer` are the two halves of a demonstration, with names in braces for what is filled in: the
    task's fields or `input`, all of them as a student reads them, and `rationale` and `label`. Where labels are
    choices, `{label}` is the letter in parentheses and the choice. `few_shot` are a chat's instructions before the
    demonstrations, `zero_shot` either route's instructions in place of them; `stop` ends an output. A demonstration
    holds a value for every field, and `rationale` and `label`.
    """

    question: str
    answer: str
    stop: tuple[str, ...] = ()
    few_shot: str
    zero_shot: str
    demonstrations: tuple[GivenDemonstration, ...]

    def digest(self) -> str:
        """Return the SHA-256 of its content in hexadecimal; comments and layout of the YAML do not count."""
        return hashlib.sha256(orjson.dumps(self.model_dump(), option=orjson.OPT_SORT_KEYS)).hexdigest()


class Demonstration(NamedTuple):
    """An input with its label and the rationale for it."""

    values: Mapping[str, FieldValue]
    rationale: str
    label: str


@dataclass(frozen=True)
class Prompts:
    """Prompts that ask a teacher for a task's rationales."""

    task: Task
    file: PromptFile
    is_zero_shot: bool = False

    @property
    def advice(self) -> str:
        """Advice for the case that too many outputs can't be parsed."""
        other = "demonstrations" if self.is_zero_shot else "--zero-shot"
        return (
            f"All outputs are kept. Use another --output with {other}, other --prompts or more"
            " --max-tokens, or raise --max-unparsed to continue with this one."
        )

    def completion(self, values: Mapping[str, FieldValue]) -> str:
        """Return a text to be continued by rationale and label. Raises FieldError."""
        if self.is_zero_shot:
            return f"{self.file.zero_shot.strip()}\n\n{self._question(values)}"
        shown = [f"{question} {answer}" for question, answer in self._shown]
        return "\n\n".join([*shown, self._question(values)])

    def messages(self, values: Mapping[str, FieldValue]) -> list[dict[str, str]]:
        """Return the same as a chat: each demonstration is a question and its answer. Raises FieldError."""
        if self.is_zero_shot:
            return [{"role": "user", "content": self.completion(values)}]
        turns = [{"role": "system", "content": self.file.few_shot.strip()}]
        for question, answer in self._shown:
            turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return [*turns, {"role": "user", "content": self._question(values)}]

    def checked(self, path: Path) -> "Prompts":
        """Return these prompts of a file. Raises BadFile."""
        for number, given in enumerate(self.file.demonstrations, start=1):
            if missing := {"rationale", "label"} - given.keys():
                raise BadFile(f"{path}: demonstration {number} has no {' and no '.join(sorted(missing))}")
            one = _demonstration(given)
            try:
                candidates = self.task.candidates(one.values)
                if candidates is not None and one.label not in candidates:
                    listed = ", ".join(candidates)
                    raise BadFile(f"{path}: demonstration {number}: {one.label!r} is not one of {listed}")
                self._question(one.values)
                read = read_output(self.task, one.values, self._answer(one))
            except BadFile:
                raise
            except FieldError as error:
                raise BadFile(f"{path}: demonstration {number}: {error}") from None
            except (KeyError, IndexError, AttributeError, ValueError) as error:
                raise BadFile(f"{path}: invalid braces in question or answer: {error}") from None
            if (read.rationale, read.label, read.problem) != (one.rationale, one.label, None):
                raise BadFile(f"{path}: demonstration {number}: it is parsed as {read}")
        return self

    @cached_property
    def _shown(self) -> Sequence[tuple[str, str]]:
        """Questions and answers of the demonstrations."""
        demonstrations = [_demonstration(one) for one in self.file.demonstrations]
        return [(self._question(one.values), self._answer(one)) for one in demonstrations]

    def _question(self, values: Mapping[str, FieldValue]) -> str:
        texts = {name: value for name, value in values.items() if isinstance(value, str)}
        return self.file.question.strip().format_map({**texts, "input": self.task.input_text(values)})

    def _answer(self, one: Demonstration) -> str:
        label = one.label
        if self.task.choices is not None:
            letter = LETTERS[tuple(one.values[self.task.choices]).index(label)]
            label = f"({letter}) {label}"
        return self.file.answer.format(rationale=one.rationale, label=label)


def load_prompts(task: Task, path: Path | None = None, *, is_zero_shot: bool = False) -> Prompts:
    """Load the prompts of a file, or the built-in ones for the task. Raises BadFile."""
    path = path or Path(__file__).with_name("demonstrations") / f"{PROMPT_FILES[task.name]}.yaml"
    given = read_yaml(path)
    try:
        file = PromptFile.model_validate(given)
    except ValidationError as error:
        raise BadFile(f"{path}: {complaint_about(error, given, 'the file')}") from None
    if not file.demonstrations:
        raise BadFile(f"{path}: demonstrations: at least one is needed")
    return Prompts(task, file, is_zero_shot=is_zero_shot).checked(path)


def own_prompts(given: TaskFile, path: Path, *, is_zero_shot: bool = False) -> Prompts:
    """Make the prompts of a task file, zero-shot if it has no demonstrations. Raises BadFile."""
    task, prompt = given.to_task(), given.prompt
    if prompt is None:
        raise BadFile(f"{path}: prompt is missing, which tells the teacher what to do")
    candidates, form = "", "<answer>"
    if task.labels is not None:
        candidates, form = f"The answer is one of: {', '.join(task.labels)}.\n", "<label>"
    if task.choices is not None:
        candidates, form = "The answer is one of the choices of the input.\n", "(<letter>) <choice>"
    said = OWN_FORM.format(
        instruction=prompt.instruction.strip(),
        candidates=candidates,
        form=OWN_ANSWER.format(rationale="", label=form).strip(),
    )
    file = PromptFile(
        question=OWN_QUESTION,
        answer=OWN_ANSWER,
        stop=(f"\n\n{OWN_INPUT}",),
        few_shot=said,
        zero_shot=said,
        demonstrations=prompt.demonstrations,
    )
    return Prompts(task, file, is_zero_shot=is_zero_shot or not prompt.demonstrations).checked(path)


def _demonstration(one: Mapping[str, str | tuple[str, ...]]) -> Demonstration:
    values = {name: value for name, value in one.items() if name not in ("rationale", "label")}
    return Demonstration(values, str(one["rationale"]), str(one["label"]))


app = command_line()

TaskName = Literal["esnli", "anli1", "cqa", "svamp", "asdiv"]
Output = Annotated[Path, typer.Option(help="File of outputs, new or to be continued, as JSON lines.")]
Data = Annotated[
    Path,
    typer.Option(help="Folder of `fovea train distill`'s data, or a file of inputs: JSON lines or a JSON list."),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Use at most this many inputs.")]
PromptsFile = Annotated[Path | None, typer.Option(help="YAML file of prompts.", show_default="the task's")]
ZeroShot = Annotated[bool, typer.Option("--zero-shot", help="Use an instruction instead of demonstrations.")]
KeyVariable = Annotated[
    str | None, typer.Option(help="Environment variable that holds the key.", show_default="no key")
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Maximum number of tokens of an output.")]
Extra = Annotated[str, typer.Option(help="Additional fields of a request, as JSON; null removes a field.")]
MaxUnparsed = Annotated[
    float, typer.Option(min=0, max=1, help="Stop and fail if more than this share of the outputs can't be parsed.")
]
Prices = Annotated[
    tuple[float, float] | None,
    typer.Option(help="Prices of a million input tokens and of a million output tokens, to show the cost."),
]


class UnparsedOutputs(Exception):
    """Too large a share of the outputs can't be parsed; the message can be shown to users."""


@dataclass(frozen=True)
class Plan:
    """The common part of an extraction's requests; `extra` adds fields to their JSON, null removes a field."""

    prompts: Prompts
    endpoint: Endpoint
    model: str
    max_tokens: int = 256
    extra: Mapping[str, Any] = field(default_factory=dict)

    def prompt(self, values: Mapping[str, FieldValue]) -> str | list[dict[str, str]]:
        is_chat = self.endpoint.api == "chat"
        return self.prompts.messages(values) if is_chat else self.prompts.completion(values)

    def body(self, prompt: str | list[dict[str, str]]) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages" if self.endpoint.api == "chat" else "prompt": prompt,
            "temperature": TEMPERATURE,
            "max_tokens": self.max_tokens,
            "stop": list(self.prompts.file.stop),
            **self.extra,
        }
        return {name: value for name, value in body.items() if value is not None}

    def arguments(self) -> dict[str, Any]:
        """Return the values that the outputs depend on, except the inputs; the model's address is not one of them."""
        return {
            "task": self.prompts.task.name,
            "prompts": self.prompts.file.digest(),
            "zero_shot": self.prompts.is_zero_shot,
            "api": self.endpoint.api,
            "model": self.model,
            "temperature": TEMPERATURE,
            "max_tokens": self.max_tokens,
            "extra": dict(self.extra),
        }

    def record(self, one: Input, prompt: str | list[dict[str, str]], answer: Answer) -> Record:
        """Make the record of an answer to a prompt about an input."""
        read = read_output(self.prompts.task, one.values, answer.text)
        return Record(
            id=one.id,
            row=one.row,
            prompt=digest_of(prompt),
            arguments=digest_of(self.arguments()),
            model=answer.model,
            output=answer.text,
            finish_reason=answer.finish_reason,
            rationale=read.rationale,
            label=read.label,
            problem=read.problem,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
        )


@dataclass
class Tally:
    """Totals of the records of a file; `max_unparsed` is the largest share of unparsed outputs that is accepted."""

    tokens: Tokens = field(default_factory=Tokens)
    max_unparsed: float = 1.0
    num_records: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    first_unparsed: Record | None = None

    def add(self, record: Record) -> None:
        self.num_records += 1
        self.tokens.add(record.prompt_tokens, record.completion_tokens)
        if record.problem is not None:
            self.problems[record.problem] += 1
            self.first_unparsed = self.first_unparsed or record

    def check(self, *, is_complete: bool) -> None:
        """Raises UnparsedOutputs for too many unparsed outputs; needs at least MIN_JUDGED unless `is_complete`."""
        first, num_unparsed = self.first_unparsed, self.problems.total()
        if first is None or num_unparsed <= self.max_unparsed * self.num_records:
            return
        if not is_complete and self.num_records < MIN_JUDGED:
            return
        shown = first.output[:MAX_SHOWN] + ("…" if len(first.output) > MAX_SHOWN else "")
        raise UnparsedOutputs(
            f"{num_unparsed} of {self.num_records} outputs could not be parsed, a larger share than --max-unparsed"
            f" {self.max_unparsed:g}. The first is about {first.id} ({first.problem}): {shown!r}"
        )

    def told(self) -> str:
        """Text with the numbers of unparsed outputs and tokens, and their cost."""
        return f"{self.problems.total()} unparsed · {self.tokens.told()}"


def unanswered(plan: Plan, inputs: Sequence[Input], records: Sequence[Record]) -> list[Input]:
    """The inputs without a record. Raises OutputError for an input whose record has another text or row."""
    found = {record.id: record for record in records}
    for one in inputs:
        record = found.get(one.id)
        if record is not None and (record.row, record.prompt) != (one.row, digest_of(plan.prompt(one.values))):
            raise OutputError(f"the output belongs to other inputs: {one.id} was different when it was sent")
    return [one for one in inputs if one.id not in found]


@app.command()
def extract(
    *,
    task: Annotated[TaskName | None, typer.Argument(help="Task of the inputs.", show_default=False)] = None,
    task_file: Annotated[
        Path | None, typer.Option("--task", help="Your own task instead: a YAML or JSON file.", show_default=False)
    ] = None,
    data: Data,
    split: Annotated[Split, typer.Option(help="Of a folder --data.")] = "train",
    limit: Limit = None,
    output: Output,
    model: Annotated[str, typer.Option(help="The teacher's name at the endpoint.")],
    base_url: Annotated[str, typer.Option(help="URL of an OpenAI-compatible endpoint.")] = "http://127.0.0.1:8080/v1",
    api: Annotated[Api, typer.Option(help="Route of the endpoint to use.")] = "chat",
    key_variable: KeyVariable = None,
    prompts: PromptsFile = None,
    zero_shot: ZeroShot = False,
    max_tokens: MaxTokens = 256,
    extra: Extra = "{}",
    concurrency: Annotated[int, typer.Option(min=1, help="Number of concurrent requests.")] = 8,
    attempts: Annotated[int, typer.Option(min=1, help="Attempts for each request.")] = Patience.attempts,
    timeout_s: Annotated[float, typer.Option(min=0.001, help="Time limit of each attempt.")] = Patience.timeout_s,
    max_unparsed: MaxUnparsed = 0.5,
    prices: Prices = None,
    show_prompt: Annotated[bool, typer.Option("--show-prompt", help="Print the first request and exit.")] = False,
) -> None:
    """Collect rationales and labels from a teacher, and keep all of its outputs.

    Run the same command again to continue where it stopped. Exit status: 0 if every input has an output, 3 if the
    endpoint rejected some, 4 if too many outputs can't be parsed, 1 if the command failed.
    """
    stamina.instrumentation.set_on_retry_hooks(())  # a line for each retry would break the progress bar
    console = Console(stderr=True, highlight=False)
    with one_line_errors("fovea distill extract", console, (Refused, EndpointError)):
        loaded = _prompts(task, task_file, prompts, is_zero_shot=zero_shot)
        endpoint = Endpoint(base_url, api, key_in(key_variable))
        plan = Plan(loaded, endpoint, model, max_tokens, json_object(extra, "--extra"))
        asked = _asked(loaded.task, data, split)[:limit]
        if show_prompt:
            typer.echo(json.dumps(plan.body(plan.prompt(asked[0].values)), indent=1, ensure_ascii=False))
            return
        tally = Tally(Tokens(*(prices or (None, None))), max_unparsed)
        try:
            with opened_rationales(output, plan.arguments()) as file:
                num_failed = asyncio.run(
                    _extract(plan, asked, file, tally, console, Patience(attempts, timeout_s), concurrency)
                )
        except UnparsedOutputs as error:
            _tell_totals(tally, console)
            told = printable(str(error))
            console.print(f"fovea distill extract: {told}\n{loaded.advice}", markup=False, soft_wrap=True)
            raise typer.Exit(EXIT_UNPARSED) from None
    _tell_totals(tally, console)
    if num_failed:
        console.print(
            f"{num_failed} inputs have no output; run the same command to send them again", markup=False, soft_wrap=True
        )
        raise typer.Exit(EXIT_UNANSWERED)


async def _extract(
    plan: Plan,
    asked: Sequence[Input],
    file: RecordFile[Record],
    tally: Tally,
    console: Console,
    patience: Patience,
    concurrency: int,
) -> int:
    """Ask about the inputs and return how many remain without an output.

    Raises EndpointError, OutputError, UnparsedOutputs and Interrupted.
    """
    reasons: list[str] = []
    with Bars(console).bar("Outputs") as bar:
        todo = unanswered(plan, asked, file.found)
        for record in file.found:
            tally.add(record)
        bar.set(len(asked) - len(todo), len(asked))
        bar.advance(0, tally.told())
        tally.check(is_complete=not todo)

        async def ask_about(one: Input) -> None:
            prompt = plan.prompt(one.values)
            record = plan.record(one, prompt, await teacher.ask(plan.body(prompt)))
            await file.append(record)
            tally.add(record)
            bar.advance(1, tally.told())
            tally.check(is_complete=False)

        def on_failure(one: Input, error: EndpointError) -> None:
            reasons.append(str(error))
            told = {"id": one.id, "status": error.status, "reason": str(error)}
            typer.echo(json_line(json.dumps(told, ensure_ascii=False)), nl=False)

        async with EndpointClient(plan.endpoint, patience) as teacher:
            inquiry = Inquiry(teacher, ask_about, on_failure, ends=(OutputError, UnparsedOutputs))
            with attended(inquiry, console):
                await inquiry.run(todo, concurrency)
    tally.check(is_complete=True)
    if tally.num_records == 0 and len(set(reasons)) == 1:
        raise EndpointError(f"every input was rejected for the same reason, {reasons[0]}")
    return len(reasons)


def _tell_totals(tally: Tally, console: Console) -> None:
    console.print(f"{tally.num_records} outputs: {tally.told()}", markup=False, soft_wrap=True)
    for problem, number in tally.problems.most_common():
        console.print(f"  {problem}: {number}", markup=False, soft_wrap=True)


def _prompts(name: TaskName | None, file: Path | None, prompts: Path | None, *, is_zero_shot: bool) -> Prompts:
    """The prompts of a built-in task or a user's own. Raises BadParameter unless one is named, BadFile."""
    if (name is None) == (file is None):
        raise typer.BadParameter("name a task, or give a file with --task, and not both")
    if name is not None:
        return load_prompts(TASKS[name], prompts, is_zero_shot=is_zero_shot)
    assert file is not None
    given = read_task_file(file)
    if prompts is not None:
        return load_prompts(given.to_task(), prompts, is_zero_shot=is_zero_shot)
    return own_prompts(given, file, is_zero_shot=is_zero_shot)


def _asked(task: Task, data: Path, split: Split) -> list[Input]:
    """Read the inputs to ask about. Raises BadFile, also if there are none."""
    if data.is_dir() and task.name in TASKS:
        asked = published_inputs(task, data, split)
    else:
        path = split_file(data, split) if data.is_dir() else data
        if path is None:
            raise BadFile(f"{data} has no file {split}.jsonl")
        asked = read_inputs(task, path)
    if not asked:
        raise BadFile(f"{data} contains no inputs")
    return asked


if __name__ == "__main__":
    app()
