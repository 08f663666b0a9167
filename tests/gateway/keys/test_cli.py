"""`fovea keys`, as it is typed."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.access import KeyRing, read_key_file
from gateway.keys.cli import app
from gateway.settings import SCOPES, GatewaySettings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "keys.json"


def keys(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--file", str(file)])


def make(file: Path, name: str, *options: str) -> str:
    result = keys(file, "create", "--name", name, *options)
    assert result.exit_code == 0, result.output
    return result.output.strip()


def test_a_key_is_shown_once_and_the_file_keeps_its_digest(file: Path) -> None:
    key = make(file, "ci", "--scope", "embed", "--scope", "score", "--rate-limit", "600/minute")
    assert key not in file.read_text()
    (record,) = read_key_file(file).keys
    assert record.name == "ci"
    assert record.scopes == {"embed", "score"}
    assert record.rate_limit == "600/minute"
    visitor = KeyRing(GatewaySettings(keys_file=file)).find(key)
    assert visitor is not None
    assert visitor.name == "ci"


def test_a_name_moves_no_cursor_where_it_is_listed_or_complained_of(file: Path) -> None:
    name = "ci\x1b[2J\n\u202eforged"
    make(file, name, "--scope", "embed")
    listed = keys(file, "list").output
    assert r"ci\x1b[2J\n\u202eforged" in listed
    assert len(listed.splitlines()) == 2
    assert "\x1b" not in keys(file, "create", "--name", name, "--scope", "embed").output


def test_keys_are_listed_and_revoked_by_name(file: Path) -> None:
    first = make(file, "first", "--scope", "embed")
    second = make(file, "second", "--scope", "admin")
    listed = keys(file, "list").output
    assert "first\tembed" in listed
    assert "second\tadmin" in listed
    revoked = keys(file, "revoke", "first")
    assert (revoked.exit_code, revoked.output) == (0, "Revoked first.\n")
    ring = KeyRing(GatewaySettings(keys_file=file))
    assert ring.find(first) is None
    assert ring.find(second) is not None


def test_a_key_can_be_marked_for_canaries_and_other_keys_are_stored_as_before(file: Path) -> None:
    marked, plain = make(file, "tester", "--scope", "embed", "--canary"), make(file, "shop", "--scope", "embed")
    ring = KeyRing(GatewaySettings(keys_file=file))
    found = [visitor.prefers_canary for key in (marked, plain) if (visitor := ring.find(key)) is not None]
    assert found == [True, False]
    listed = [line.split("\t") for line in keys(file, "list").output.splitlines()]
    assert [(line[0], line[7]) for line in listed] == [("name", "canary"), ("tester", "yes"), ("shop", "-")]
    # Gateways of before refuse a file with a field that they do not know.
    assert [set(record) - {"created"} for record in json.loads(file.read_text())["keys"]] == [
        {"name", "sha256", "scopes", "canary"},
        {"name", "sha256", "scopes"},
    ]


def test_a_key_belongs_to_a_tenant_and_the_list_says_which(file: Path) -> None:
    made = {"first": make(file, "first", "--scope", "embed:read", "--tenant", "north")}
    made["second"] = make(file, "second", "--scope", "embed")
    listed = [line.split("\t") for line in keys(file, "list").output.splitlines()]
    assert [(line[0], line[1], line[6]) for line in listed[1:]] == [
        ("first", "embed:read", "north"),
        ("second", "embed", "default"),
    ]
    ring = KeyRing(GatewaySettings(keys_file=file))
    tenants = {name: visitor.tenant for name, key in made.items() if (visitor := ring.find(key)) is not None}
    assert tenants == {"first": "north", "second": "default"}


def test_keys_that_are_made_and_revoked_are_recorded_without_the_key(file: Path, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    key = make(file, "ci", "--scope", "embed", "--tenant", "north", "--audit-log", str(audit))
    assert keys(file, "revoke", "ci", "--audit-log", str(audit)).exit_code == 0
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["action"], line["outcome"]) for line in lines] == [
        (action, outcome) for action in ("key.create", "key.revoke") for outcome in ("begun", "done")
    ]
    assert {(line["key"], line["tenant"]) for line in lines} == {("ci", "north")}
    assert all(line["user"] for line in lines)
    assert key not in audit.read_text()


def test_a_key_that_can_not_be_recorded_is_not_made(file: Path, tmp_path: Path) -> None:
    result = keys(file, "create", "--name", "x", "--scope", "embed", "--audit-log", str(tmp_path))
    assert result.exit_code == 1
    assert "audit log" in result.output
    assert not file.exists()


def test_a_key_is_revoked_though_that_can_not_be_recorded(file: Path, tmp_path: Path) -> None:
    key = make(file, "leaked", "--scope", "embed")
    result = keys(file, "revoke", "leaked", "--audit-log", str(tmp_path))
    assert result.exit_code == 0
    assert "not recorded" in result.output
    assert KeyRing(GatewaySettings(keys_file=file)).find(key) is None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["create", "--name", "x", "--scope", "paint"], "scopes"),
        (["create", "--name", "x", "--scope", "embed:all"], "scopes"),
        (
            ["create", "--name", "x", "--scope", "embed", "--tenant", "../north"],
            "tenant: '../north' is no tenant: up to 63",
        ),
        (["create", "--name", "x", "--scope", "embed", "--rate-limit", "often"], "rate_limit"),
        (["create", "--name", "taken", "--scope", "embed"], "already"),
        (["revoke", "nobody"], "no key named 'nobody'"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(file: Path, arguments: list[str], complaint: str) -> None:
    make(file, "taken", "--scope", "embed")
    before = file.read_bytes()
    result = keys(file, *arguments)
    assert result.exit_code == 1
    assert complaint in result.output
    assert file.read_bytes() == before


def test_a_file_that_is_no_keys_file_is_left_alone(file: Path) -> None:
    file.parent.mkdir()
    file.write_text(json.dumps({"other": 1}))
    assert keys(file, "create", "--name", "x", "--scope", "embed").exit_code == 1
    assert json.loads(file.read_text()) == {"other": 1}


def test_a_pipe_in_place_of_a_keys_file_is_named_in_one_line(file: Path) -> None:
    file.parent.mkdir()
    os.mkfifo(file)
    listed = keys(file, "list")
    assert (listed.exit_code, listed.stderr.strip()) == (1, f"fovea keys: {file}: not a regular file")


def test_a_key_may_have_limits_in_tokens_and_by_model_and_what_others_wrote_for_tenants_stays(file: Path) -> None:
    file.parent.mkdir()
    file.write_text('{"tenants": {"lab": {"token_limit": "1000000/hour"}}}')
    by_model = ("--model-token-limit", "big=1000/minute", "--model-rate-limit", "big=6/minute")
    make(file, "ci", "--scope", "generate", "--token-limit", "100000/minute", *by_model)
    make(file, "old", "--scope", "embed")
    assert keys(file, "revoke", "old").exit_code == 0
    held = read_key_file(file)
    assert held.tenants["lab"].token_limit == "1000000/hour"
    (record,) = held.keys
    assert record.token_limit == "100000/minute"
    listed = [line.split("\t") for line in keys(file, "list").output.splitlines()]
    assert [line[:5] for line in listed] == [
        ["name", "scopes", "rate_limit", "token_limit", "models"],
        ["ci", "generate", "-", "100000/minute", "big rate_limit=6/minute token_limit=1000/minute"],
        [""],
        ["tenant", "rate_limit", "token_limit", "models"],
        ["lab", "-", "1000000/hour", "-"],
    ]
    assert record.models["big"].model_dump() == {"rate_limit": "6/minute", "token_limit": "1000/minute"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--token-limit", "many"), "token_limit: 'many' is not one rate: write a number from 1 and "),
        (("--rate-limit", "5"), "rate_limit: '5' is not one rate: "),
        (("--rate-limit", "5/min"), "rate_limit: '5/min' is not one rate: "),
        (("--rate-limit", "1/second; 5/minute"), "rate_limit: '1/second; 5/minute' is not one rate: "),
        (("--token-limit", "0/minute"), "token_limit: '0/minute' is not one rate: "),
        (("--model-token-limit", "big"), "--model-token-limit: 'big' is not MODEL=RATE"),
        (("--model-rate-limit", "=5/minute"), "--model-rate-limit: '=5/minute' is not MODEL=RATE, such as"),
        (
            ("--model-token-limit", "big@latest=5/minute"),
            "--model-token-limit: 'big@latest' can't be limited: a limit is of a model's name without a version, "
            "as vicuna-7b; write MODEL=RATE, such as vicuna-7b=60/minute.",
        ),
        (("--model-rate-limit", "big=often"), "models.big.rate_limit: 'often' is not one rate: "),
    ],
)
def test_a_limit_that_is_none_is_refused_by_its_name(file: Path, options: tuple[str, ...], told: str) -> None:
    refused = keys(file, "create", "--name", "ci", "--scope", "embed", *options)
    assert refused.exit_code == 1
    assert refused.output.startswith(f"fovea keys: {told}")
    assert not file.exists()


def test_the_help_names_every_scope() -> None:
    told = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["create", "--help"]).output
    assert all(scope.partition(":")[0] in told for scope in SCOPES)
