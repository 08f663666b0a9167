"""`fovea distill extract` against an endpoint that has bad days."""

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner, Result

from services.core.text_files import BadFile
from services.jobs.inquiry import MAX_FAILURES_IN_A_ROW, OutputError
from services.predict.data.inputs import published_inputs, read_inputs
from services.predict.data.rationale_file import Record, opened_rationales, read_records, read_teacher_outputs
from services.predict.extraction.command import MIN_JUDGED, TaskName, app, load_prompts
from services.predict.tasks import ANLI1, ASDIV, CQA, ESNLI, SVAMP, TASKS, Task
from tests.predict.teacher_server import COMPLETION_TOKENS, OUTPUT, PROMPT_TOKENS, Dropped, TeacherServer, error

pytestmark = pytest.mark.process

NUM_INPUTS = 12


@pytest.fixture
def server() -> Iterator[TeacherServer]:
    with TeacherServer().beside() as server:
        yield server


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    return write_inputs(tmp_path / "inputs.jsonl", range(NUM_INPUTS))


def write_inputs(path: Path, numbers: Sequence[int]) -> Path:
    rows = [{"id": f"n{number}", "premise": f"Door {number:03d} is red.", "hypothesis": "It is."} for number in numbers]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def extract(server: TeacherServer, inputs: Path, *options: str, output: Path | None = None) -> Result:
    output = output or inputs.with_name("rationales.jsonl")
    arguments = ["esnli", "--output", str(output), "--model", "big", "--base-url", server.url, "--data", str(inputs)]
    return CliRunner().invoke(app, [*arguments, *options])


def records(inputs: Path) -> list[Record]:
    return read_records(inputs.with_name("rationales.jsonl"))


def assert_each_once(inputs: Path, num_inputs: int = NUM_INPUTS) -> None:
    assert sorted(record.row for record in records(inputs)) == list(range(num_inputs))


def test_every_input_gets_a_record_with_its_output_and_what_that_says(server: TeacherServer, inputs: Path) -> None:
    server.outputs = {"Door 003": "It may be.\nAnswer: perhaps", "Door 004": "No idea."}
    done = extract(server, inputs)
    assert done.exit_code == 0, done.output
    assert_each_once(inputs)
    found = {record.id: record for record in records(inputs)}
    good = found["n7"]
    assert (good.row, good.output, good.finish_reason, good.model) == (7, OUTPUT, "stop", "big@1")
    assert (good.rationale, good.label, good.problem) == ("The one says as much as the other.", "entailment", None)
    assert (good.prompt_tokens, good.completion_tokens) == (PROMPT_TOKENS, COMPLETION_TOKENS)
    assert (found["n3"].output, found["n3"].problem) == ("It may be.\nAnswer: perhaps", "unknown_label")
    assert (found["n4"].output, found["n4"].problem) == ("No idea.", "no_answer")
    assert "12 outputs: 2 unparsed · 12.00k tokens in, 240 out" in done.stderr
    assert "unknown_label: 1" in done.stderr and "no_answer: 1" in done.stderr


def test_prices_make_a_cost_and_tokens_that_are_not_counted_are_told(server: TeacherServer, inputs: Path) -> None:
    prices = ("--prices", "2.5", "10")
    assert "cost 0.0135" in extract(server, inputs, *prices, "--limit", "5").stderr
    # what was paid before counts as well
    server.counts_tokens = False
    assert "5.00k tokens in, 100 out · 7 not counted · cost 0.0135" in extract(server, inputs, *prices).stderr


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize("zero_shot", [False, True])
def test_requests_hold_the_prompt_and_what_the_options_say(
    server: TeacherServer, inputs: Path, api: str, zero_shot: bool
) -> None:
    extra = json.dumps({"max_tokens": None, "max_completion_tokens": 99, "seed": 3, "temperature": 0.7})
    options = ("--api", api, "--extra", extra, "--limit", "1")
    assert extract(server, inputs, *options, *(["--zero-shot"] if zero_shot else [])).exit_code == 0
    prompts = load_prompts(ESNLI, is_zero_shot=zero_shot)
    values = {"premise": "Door 000 is red.", "hypothesis": "It is."}
    prompt = {"messages": prompts.messages(values)} if api == "chat" else {"prompt": prompts.completion(values)}
    said = {"model": "big", "temperature": 0.7, "max_completion_tokens": 99, "seed": 3, "stop": ["\n\nPremise:"]}
    assert server.bodies == [{**said, **prompt}]
    assert records(inputs)[0].problem is None


def test_the_first_request_can_be_looked_at_without_sending_it(server: TeacherServer, inputs: Path) -> None:
    shown = extract(server, inputs, "--show-prompt")
    assert json.loads(shown.stdout)["messages"][-1]["content"].startswith("Premise: Door 000 is red.")
    assert not server.asked and not inputs.with_name("rationales.jsonl").exists()


def test_no_more_requests_are_on_their_way_than_allowed(server: TeacherServer, inputs: Path) -> None:
    server.delay_s = 0.01
    server.first_together = 3
    assert extract(server, inputs, "--concurrency", "3").exit_code == 0
    assert server.most_at_once == 3


def test_what_was_answered_is_not_asked_again(server: TeacherServer, inputs: Path) -> None:
    assert extract(server, inputs, "--limit", "5").exit_code == 0
    assert extract(server, inputs).exit_code == 0
    assert extract(server, inputs).exit_code == 0
    assert_each_once(inputs)
    assert set(server.asked.values()) == {1} and server.asked.total() == NUM_INPUTS
    # inputs may be added behind the others
    write_inputs(inputs, range(NUM_INPUTS + 3))
    assert extract(server, inputs).exit_code == 0
    assert_each_once(inputs, NUM_INPUTS + 3)
    assert server.asked.total() == NUM_INPUTS + 3


def test_wherever_the_file_was_torn_nothing_whole_is_lost_and_nothing_comes_twice(
    server: TeacherServer, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert extract(server, inputs, "--limit", "3", "--concurrency", "1").exit_code == 0
    # this many fsyncs take minutes on some disks, and what a crash may lose is truncated here
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    output = inputs.with_name("rationales.jsonl")
    arguments = json.loads(output.with_name(f"{output.name}.arguments.json").read_bytes())
    content = output.read_bytes()
    ends = [place + 1 for place, byte in enumerate(content) if byte == ord("\n")]
    # the size of a file may reach the disk before its content does
    for tail in (b"", b"\0\0\0", b"\0\n\0\n"):
        for length in range(len(content) + 1):
            output.write_bytes(content[:length] + tail)
            with opened_rationales(output, arguments) as file:
                num_whole = sum(end <= length for end in ends)
                assert [record.row for record in file.found] == list(range(num_whole))
            assert output.read_bytes() == content[: ([0, *ends])[num_whole]]
    output.write_bytes(content[:-1])
    assert extract(server, inputs).exit_code == 0
    assert_each_once(inputs)


def test_a_disk_that_is_full_stops_it_and_it_goes_on_when_there_is_room(server: TeacherServer, inputs: Path) -> None:
    with files_of_at_most(1000):
        full = extract(server, inputs, "--concurrency", "3")
    assert full.exit_code == 1 and "the output can't be written: File too large" in full.stderr
    num_asked = server.asked.total()
    num_written = len(records(inputs))
    assert 0 < num_written < NUM_INPUTS and num_asked <= num_written + 3
    assert extract(server, inputs).exit_code == 0
    assert_each_once(inputs)


def extracting(server: TeacherServer, inputs: Path) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    arguments = ["esnli", "--output", str(inputs.with_name("rationales.jsonl")), "--model", "big"]
    arguments += ["--base-url", server.url, "--data", str(inputs), "--concurrency", "3"]
    command = [sys.executable, "-m", "services.predict.extraction.command", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_until_told(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    while text not in process.stderr.readline():
        assert process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_lets_the_answers_on_their_way_come(
    server: TeacherServer, inputs: Path, number: signal.Signals
) -> None:
    server.may_answer.clear()
    with extracting(server, inputs) as process:
        assert server.was_asked.wait(60)
        process.send_signal(number)
        wait_until_told(process, "press again")
        server.may_answer.set()
        assert process.wait(60) == 130
        assert process.stderr is not None and "Run the same command to continue" in process.stderr.read()
    assert len(records(inputs)) == server.asked.total() < NUM_INPUTS
    assert extract(server, inputs).exit_code == 0
    assert_each_once(inputs)
    assert server.asked.total() == NUM_INPUTS


def test_a_second_signal_waits_for_nobody(server: TeacherServer, inputs: Path) -> None:
    server.delay_s = 1000
    with extracting(server, inputs) as process:
        assert server.was_asked.wait(60)
        process.terminate()
        wait_until_told(process, "press again")
        process.terminate()
        assert process.wait(60) == 130
    assert records(inputs) == []


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (("--model", "other"), 'model was "big", and is "other"'),
        (("--zero-shot",), "--zero-shot was false, and is true"),
        (
            ("--extra", '{"temperature": 0.5}', "--max-tokens", "9"),
            '--extra was {}, and is {"temperature": 0.5}; --max-tokens was 256, and is 9',
        ),
        (("--api", "completions"), 'api was "chat", and is "completions"'),
        (("--extra", '{"seed": 1}'), 'extra was {}, and is {"seed": 1}'),
    ],
)
def test_a_file_that_was_begun_otherwise_is_refused_with_the_difference(
    server: TeacherServer, inputs: Path, options: Sequence[str], difference: str
) -> None:
    assert extract(server, inputs, "--limit", "2").exit_code == 0
    before = inputs.with_name("rationales.jsonl").read_bytes()
    refused = extract(server, inputs, *options)
    assert refused.exit_code == 1
    assert difference in refused.stderr
    assert inputs.with_name("rationales.jsonl").read_bytes() == before
    assert server.asked.total() == 2


def test_an_extraction_without_any_output_binds_no_arguments(server: TeacherServer, inputs: Path) -> None:
    server.refused = {"Door": (404, "There is no model 'bug'.")}
    assert extract(server, inputs, "--model", "bug").exit_code == 1
    server.refused = {}
    done = extract(server, inputs)
    assert done.exit_code == 0, done.output
    assert_each_once(inputs)
    # with an output, the refusal says which files to remove
    refused = extract(server, inputs, "--model", "other")
    assert refused.exit_code == 1 and f"remove it and {inputs.parent}/rationales.jsonl.arguments.json" in refused.stderr


def test_other_demonstrations_are_another_beginning(server: TeacherServer, inputs: Path, tmp_path: Path) -> None:
    ours = Path(load_prompts.__code__.co_filename).with_name("demonstrations") / "esnli.yaml"
    own = tmp_path / "own.yaml"
    own.write_text(f"# the same\n{ours.read_text()}")
    assert extract(server, inputs, "--limit", "2").exit_code == 0
    assert extract(server, inputs, "--limit", "3", "--prompts", str(own)).exit_code == 0
    own.write_text(ours.read_text().replace("green raincoat", "red raincoat"))
    refused = extract(server, inputs, "--prompts", str(own))
    assert refused.exit_code == 1 and "prompts was" in refused.stderr


def test_records_of_other_arguments_are_found_where_the_file_beside_them_is_gone(
    server: TeacherServer, inputs: Path
) -> None:
    assert extract(server, inputs, "--limit", "2").exit_code == 0
    inputs.with_name("rationales.jsonl.arguments.json").unlink()
    refused = extract(server, inputs, "--model", "other")
    assert refused.exit_code == 1 and "line 1 was requested with other arguments" in refused.stderr
    assert extract(server, inputs).exit_code == 0
    assert_each_once(inputs)


def test_other_inputs_under_the_same_ids_are_refused(server: TeacherServer, inputs: Path) -> None:
    assert extract(server, inputs).exit_code == 0
    inputs.write_text(inputs.read_text().replace("Door 005", "Door 500"))
    changed = extract(server, inputs)
    assert changed.exit_code == 1 and "n5 was different when it was sent" in changed.stderr
    write_inputs(inputs, [0, 2, 1])
    moved = extract(server, inputs)
    assert moved.exit_code == 1 and "n2 was different when it was sent" in moved.stderr


@pytest.mark.parametrize("content", ["my notes", "my notes\n", '{"id": "a"}\n', "\n"])
def test_a_file_of_somebody_elses_is_left_as_it_is(server: TeacherServer, inputs: Path, content: str) -> None:
    output = inputs.with_name("rationales.jsonl")
    output.write_text(content)
    refused = extract(server, inputs)
    assert refused.exit_code == 1 and "output of an extraction" in refused.stderr
    assert output.read_text() == content
    assert not server.asked


def test_damage_in_the_middle_of_a_file_is_no_torn_end(server: TeacherServer, inputs: Path) -> None:
    assert extract(server, inputs, "--limit", "3").exit_code == 0
    output = inputs.with_name("rationales.jsonl")
    lines = output.read_text().splitlines(keepends=True)
    output.write_text(f"{lines[0]}{lines[1][:20]}\n{lines[2]}")
    damaged = extract(server, inputs)
    assert damaged.exit_code == 1 and "line 2 is not an output of an extraction" in damaged.stderr
    output.write_text("".join([*lines, lines[0]]))
    twice = extract(server, inputs)
    assert twice.exit_code == 1 and "occurs twice" in twice.stderr


def test_two_extractions_cannot_write_one_file(server: TeacherServer, inputs: Path) -> None:
    output = inputs.with_name("rationales.jsonl")
    assert extract(server, inputs, "--limit", "1").exit_code == 0
    arguments = json.loads(output.with_name(f"{output.name}.arguments.json").read_bytes())
    with opened_rationales(output, arguments):
        refused = extract(server, inputs)
    assert refused.exit_code == 1 and "another extraction is writing" in refused.stderr


def test_an_input_that_is_refused_is_told_and_asked_about_by_the_next_run(server: TeacherServer, inputs: Path) -> None:
    server.refused = {"Door 004": (400, "Too long."), "Door 009": (422, "Not this.")}
    done = extract(server, inputs)
    assert done.exit_code == 3
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted((one["id"], one["status"], one["reason"]) for one in told) == [
        ("n4", 400, "400: Too long."),
        ("n9", 422, "422: Not this."),
    ]
    assert "2 inputs have no output" in done.stderr
    server.refused = {}
    assert extract(server, inputs).exit_code == 0
    assert_each_once(inputs)
    assert server.asked.total() == NUM_INPUTS + 2


def test_an_endpoint_that_refuses_everything_is_not_asked_to_the_end(server: TeacherServer, tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path / "many.jsonl", range(100))
    server.refused = {"Door": (400, "There is no parameter 'stop'.")}
    done = extract(server, inputs, "--concurrency", "2")
    assert done.exit_code == 1
    assert f"{MAX_FAILURES_IN_A_ROW} consecutive inputs have no answer; last error: 400: There is no" in done.stderr
    assert server.asked.total() <= MAX_FAILURES_IN_A_ROW + 1


def test_one_reason_to_reject_every_input_is_an_error_of_the_command(server: TeacherServer, inputs: Path) -> None:
    server.refused = {"Door": (400, "top_k: Not supported here.")}
    done = extract(server, inputs, "--limit", "3")
    assert done.exit_code == 1
    assert "every input was rejected for the same reason, 400: top_k: Not supported here." in done.stderr
    assert "run the same command" not in done.stderr


def test_many_refused_inputs_among_others_do_not_stop_it(server: TeacherServer, tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path / "many.jsonl", range(3 * MAX_FAILURES_IN_A_ROW))
    server.refused = {f"{digit} is red": (400, "Odd.") for digit in "13579"}
    assert extract(server, inputs, "--concurrency", "1").exit_code == 3
    assert [record.row for record in records(inputs)] == list(range(0, 3 * MAX_FAILURES_IN_A_ROW, 2))


def test_a_teacher_that_ignores_its_demonstrations_is_not_paid_to_the_end(
    server: TeacherServer, tmp_path: Path
) -> None:
    inputs = write_inputs(tmp_path / "many.jsonl", range(60))
    server.outputs = {"Door": "Sure! \x1b[2J I would say that it is red." + "." * 500}
    stopped = extract(server, inputs, "--concurrency", "4")
    assert stopped.exit_code == 4
    assert "20 of 20 outputs could not be parsed, a larger share than --max-unparsed 0.5" in stopped.stderr
    assert "(no_answer): 'Sure! \\x1b[2J I would say that it is red." in stopped.stderr and "…'" in stopped.stderr
    assert "  no_answer: 2" in stopped.stderr and "Use another --output with --zero-shot," in stopped.stderr
    num_paid = server.asked.total()
    assert MIN_JUDGED <= num_paid < MIN_JUDGED + 4
    assert len(records(inputs)) == num_paid  # nothing that was paid for is lost
    # the same command pays for no more
    again = extract(server, inputs)
    assert again.exit_code == 4 and server.asked.total() == num_paid
    # and whoever wants the outputs all the same gets the others
    assert extract(server, inputs, "--max-unparsed", "1").exit_code == 0
    assert_each_once(inputs, 60)
    assert server.asked.total() == 60


def test_few_outputs_are_judged_when_all_have_come(server: TeacherServer, inputs: Path) -> None:
    server.outputs = {f"Door 00{number}": "Red." for number in range(4)}
    failed = extract(server, inputs, "--max-unparsed", "0.25")
    assert failed.exit_code == 4 and "4 of 12 outputs could not be parsed" in failed.stderr
    assert_each_once(inputs)
    assert extract(server, inputs, "--max-unparsed", "0.34").exit_code == 0


def test_a_prompt_without_demonstrations_is_not_advised_to_leave_them_out(server: TeacherServer, inputs: Path) -> None:
    server.outputs = {"Door": "Red."}
    failed = extract(server, inputs, "--zero-shot")
    assert failed.exit_code == 4
    assert "Use another --output with demonstrations, other --prompts" in failed.stderr
    assert "--zero-shot" not in failed.stderr


def test_failures_that_pass_cost_no_input(server: TeacherServer, inputs: Path) -> None:
    server.faults += [error(429, "Slow down."), Dropped, error(500, "Oh.")]
    assert extract(server, inputs, "--concurrency", "4").exit_code == 0
    assert_each_once(inputs)
    assert server.asked.total() == NUM_INPUTS + 3


def test_the_key_comes_from_the_environment_and_is_written_nowhere(
    server: TeacherServer, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "sk-secret"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")  # which nobody named
    refused = extract(server, inputs)
    assert refused.exit_code == 1 and "401" in refused.stderr
    missing = extract(server, inputs, "--key-variable", "MY_KEY")
    assert missing.exit_code == 2 and "MY_KEY" in missing.stderr
    monkeypatch.setenv("MY_KEY", "sk-secret")
    done = extract(server, inputs, "--key-variable", "MY_KEY")
    assert done.exit_code == 0, done.output
    written = "".join(path.read_text() for path in inputs.parent.iterdir())
    assert "sk-secret" not in written + done.output + refused.output


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--extra", "{"), "not JSON"),
        (("--extra", "[1]"), "not a JSON object"),
        (("--concurrency", "0"), "concurrency"),
        (("--max-tokens", "0"), "max-tokens"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    server: TeacherServer, inputs: Path, options: Sequence[str], complaint: str
) -> None:
    refused = extract(server, inputs, *options)
    assert refused.exit_code == 2 and complaint in refused.stderr
    assert not server.asked


def test_what_cannot_be_read_is_told_in_one_line(server: TeacherServer, tmp_path: Path) -> None:
    missing = extract(server, tmp_path / "none.jsonl")
    assert missing.exit_code == 1 and "none.jsonl: No such file or directory" in missing.stderr
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert "contains no inputs" in extract(server, empty).stderr
    inputs = write_inputs(tmp_path / "inputs.jsonl", range(2))
    no_prompts = extract(server, inputs, "--prompts", str(tmp_path / "none.yaml"))
    assert no_prompts.exit_code == 1 and "none.yaml" in no_prompts.stderr
    assert "Traceback" not in missing.output + no_prompts.output


def test_the_command_knows_all_tasks() -> None:
    assert get_args(TaskName) == tuple(TASKS)


def test_outputs_go_back_to_the_rows_that_they_are_about(server: TeacherServer, inputs: Path) -> None:
    server.outputs = {"Door 001": "Red is red.\nAnswer: neutral"}
    assert extract(server, inputs, "--limit", "3").exit_code == 0
    outputs = read_teacher_outputs(inputs.with_name("rationales.jsonl"), "esnli", 4)
    assert [output and output.label for output in outputs] == ["entailment", "neutral", "entailment", None]
    assert outputs[1] is not None and outputs[1].rationale == "Red is red."
    with pytest.raises(OutputError, match="there is no row 2 of 2"):
        read_teacher_outputs(inputs.with_name("rationales.jsonl"), "esnli", 2)


DOOR = {"premise": "A door.", "hypothesis": "It is."}
PENS = {"body": "Ann has 2.", "question": "How many?"}
WHERE = {"question": "Where?", "choices": ["air", "sea"]}
CQA_ROW = {"id": "q1", **WHERE, "answer": "sea"}
SVAMP_ROW = {"ID": "chal-1", "Body": "Ann has 2 pens.\nThey are red.", "Question": "How many?", "Equation": "2"}


@pytest.mark.parametrize(
    ("task", "row", "expected_id", "values"),
    [
        (CQA, CQA_ROW, "q1", WHERE),
        (SVAMP, SVAMP_ROW, "chal-1", {"body": "Ann has 2 pens.\nThey are red.", "question": "How many?"}),
        (
            ANLI1,
            {"uid": "u", "premise": "A.", "hypothesis": "B.", "label": 0},
            "u",
            {"premise": "A.", "hypothesis": "B."},
        ),
        (ESNLI, DOOR, "0", DOOR),
        (SVAMP, {"input": "Ann has 2.\nHow many?"}, "0", PENS),
        (ASDIV, {"id": 7, "input": "Ann has 2.\nHow many?"}, "7", PENS),
        (
            CQA,
            {"input": "Where?\nAnswer Choices:\n(a) air\n(b) sea"},
            "0",
            {"question": "Where?", "choices": ["air", "sea"]},
        ),
    ],
)
@pytest.mark.parametrize("form", ["lines", "list", "gz"])
def test_inputs_are_read_in_the_published_forms(
    tmp_path: Path, task: Task, row: dict[str, Any], expected_id: str, values: dict[str, Any], form: str
) -> None:
    path = tmp_path / ("inputs.json.gz" if form == "gz" else "inputs.json")
    content = json.dumps([row] if form == "list" else row).encode()
    path.write_bytes(gzip.compress(content) if form == "gz" else content)
    (read,) = read_inputs(task, path)
    assert (read.id, read.row, read.values) == (expected_id, 0, values)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"id": "a", "premise": "A."}', "inputs.jsonl:1: hypothesis is missing; known are id, premise"),
        ('{"id": "a", "premise": "A.", "hypothesis": 3}', "inputs.jsonl:1: hypothesis must be a string"),
        ('{"input": "A. B."}', "inputs.jsonl:1: not an input of esnli"),
        ("nonsense", "inputs.jsonl:1: not JSON"),
        (
            '\n{"id": "a"',
            r"inputs.jsonl:2: not JSON \(Expecting ',' delimiter at column 11\)",
        ),
        (
            '[{"id": "a"},\n {"id"}]',
            r"inputs.jsonl:2: not JSON \(Expecting ':' .* column 7\)",
        ),
        ("[1]", "inputs.jsonl, record 1: a JSON object is needed, not 1"),
        (
            '{"id": "a", "premise": "A.", "hypothesis": "B."}\n' * 2,
            "inputs.jsonl:1 and .*inputs.jsonl:2 have the same id 'a'",
        ),
    ],
)
def test_inputs_that_cannot_be_asked_about_are_named(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "inputs.jsonl"
    path.write_text(content)
    with pytest.raises(BadFile, match=complaint):
        read_inputs(ESNLI, path)


def test_a_published_split_is_asked_about_row_by_row(server: TeacherServer, tmp_path: Path) -> None:
    folder = tmp_path / "esnli"
    folder.mkdir()
    rows = [{"premise": f"Door {number} is red.", "hypothesis": "It is.", "label": 0} for number in range(4)]
    (folder / "esnli_valid.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = published_inputs(ESNLI, tmp_path, "valid")
    assert [(one.id, one.row) for one in asked] == [(f"valid-{number}", number) for number in range(4)]
    assert asked[2].values == {"premise": "Door 2 is red.", "hypothesis": "It is."}
    output = tmp_path / "out" / "rationales.jsonl"
    arguments = ["esnli", "--output", str(output), "--model", "big", "--base-url", server.url]
    done = CliRunner().invoke(app, [*arguments, "--data", str(tmp_path), "--split", "valid"])
    assert done.exit_code == 0, done.output
    assert sorted(record.id for record in read_records(output)) == [f"valid-{number}" for number in range(4)]
