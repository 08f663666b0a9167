from pathlib import Path

import pytest
from pydantic import Field, ValidationError
from pydantic_settings import SettingsConfigDict

from services.core.settings import ServiceSettings, SettingsError, read_settings, variable_of
from services.embed.settings import EmbedSettings
from services.generate.settings import GenerateSettings
from tests.documentation.reference import describe_settings


class EmbedLikeSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="FOVEA_EMBED_")

    port: int = 8103
    max_images: int = Field(32, gt=0, description="Most images in one request.")


def test_a_shared_variable_reaches_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEA_LOG_LEVEL", "debug")
    assert read_settings(EmbedLikeSettings).log_level == "debug"


def test_a_processes_own_variable_wins_over_the_shared_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEA_MAX_BATCH_SIZE", "3")
    monkeypatch.setenv("FOVEA_EMBED_MAX_BATCH_SIZE", "4")
    assert read_settings(EmbedLikeSettings).max_batch_size == 4


def test_a_command_line_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEA_EMBED_PORT", "9000")
    assert read_settings(EmbedLikeSettings, port=9001).port == 9001


def test_settings_made_in_code_do_not_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEA_LOG_LEVEL", "debug")
    monkeypatch.setenv("FOVEA_EMBED_MAX_IMAGES", "1")
    settings = EmbedLikeSettings()
    assert (settings.log_level, settings.max_images) == ("info", 32)


def test_a_service_setting_has_no_shared_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEA_MAX_IMAGES", "1")
    with pytest.raises(SettingsError, match="FOVEA_MAX_IMAGES is not a setting; did you mean FOVEA_EMBED_MAX_IMAGES"):
        read_settings(EmbedLikeSettings)


def test_one_port_for_all_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEA_PORT", "9000")
    with pytest.raises(SettingsError, match="did you mean FOVEA_EMBED_PORT"):
        read_settings(EmbedLikeSettings)


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("FOVEA_LOGLEVEL", "FOVEA_LOG_LEVEL"),
        ("FOVEA_EMBED_MAX_IMAGE", "FOVEA_EMBED_MAX_IMAGES"),
        ("FOVEA_UP_RESTART_S", "FOVEA_UP_RESTART_AFTER_S"),
    ],
)
def test_an_unknown_variable_is_refused_and_the_nearest_one_named(
    monkeypatch: pytest.MonkeyPatch, misspelt: str, meant: str
) -> None:
    monkeypatch.setenv(misspelt, "1")
    with pytest.raises(SettingsError, match=f"{misspelt} is not a setting; did you mean {meant}"):
        read_settings(EmbedLikeSettings)


def test_variables_of_other_processes_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEA_GATEWAY_ANYTHING", "1")
    monkeypatch.setenv("UNRELATED", "1")
    assert read_settings(EmbedLikeSettings) == EmbedLikeSettings()


def test_variables_of_the_command_line_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEA_API_KEY", "a key")
    assert read_settings(EmbedLikeSettings) == EmbedLikeSettings()


@pytest.mark.parametrize("variable", ["FOVEA_REQUEST_TIMEOUT_S", "FOVEA_EMBED_REQUEST_TIMEOUT_S"])
def test_a_bad_value_is_blamed_on_the_variable_that_held_it(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "soon")
    with pytest.raises(SettingsError, match=f"^{variable}: "):
        read_settings(EmbedLikeSettings)


def test_a_value_that_must_be_json_and_is_not_is_blamed_on_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEA_EMBED_IMAGE_URL_HOSTS", "example.org")
    with pytest.raises(SettingsError, match=r"^FOVEA_EMBED_IMAGE_URL_HOSTS: Input should be valid JSON\.$"):
        read_settings(EmbedSettings)


def test_settings_cannot_be_changed_or_extended() -> None:
    with pytest.raises(ValidationError):
        EmbedLikeSettings(colour="red")  # type: ignore[call-arg]
    with pytest.raises(ValidationError):
        EmbedLikeSettings().host = "0.0.0.0"  # type: ignore[misc]


def test_a_redis_password_is_not_in_the_settings_repr() -> None:
    assert "hunter2" not in repr(EmbedLikeSettings(redis_url="redis://:hunter2@host"))


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hun/ter2@127.0.0.1:6379",
        "redis://:12/hunter2@127.0.0.1:6379",
        "redis://:hun#ter2@127.0.0.1:6379",
        "redis://:hun?ter2@127.0.0.1:6379",
        "rediss://user:12?ter2@127.0.0.1:6379/0",
        "redis://127.0.0.1:hunter2",
        "redis://127.0.0.1:6379/hunter2",
        "redis://:hunter2@[::1",
        "redis://:hunter2@",
        "unix://:hun/ter2@/run/redis.sock",
        "redis.example:6379",
        "hunter2",
        "redis:",
    ],
)
def test_an_address_of_redis_that_would_be_read_as_another_is_refused_without_showing_its_password(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("FOVEA_REDIS_URL", url)
    with pytest.raises(SettingsError) as refused:
        read_settings(EmbedLikeSettings)
    assert str(refused.value).startswith("FOVEA_REDIS_URL: ")
    assert "redis://:PASSWORD@HOST:PORT/0" in str(refused.value)
    assert not any(part in str(refused.value) for part in ("hun", "ter2", "12/"))


@pytest.mark.parametrize(
    "url",
    [
        "redis://redis",
        "redis://:hunter2@redis:6379/0",
        "redis://user:a%40b%2Fc@[::1]:6379/",
        "rediss://:hunter2@redis.example:6380/1?ssl_ca_certs=/etc/ca.pem",
        "unix:///run/redis.sock?db=1",
        "unix://:hunter2@/run/redis.sock",
        "",
    ],
)
def test_every_form_of_an_address_of_redis_is_taken(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("FOVEA_REDIS_URL", url)
    assert read_settings(EmbedLikeSettings).redis_url == (url or None)


def test_default_folders_are_in_the_home_of_whoever_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    settings = EmbedLikeSettings()
    assert settings.store_url == "file:///home/somebody/.fovea/store"
    assert settings.checkpoint_cache_dir == Path("/home/somebody/.fovea/checkpoints")


def test_every_setting_is_described_under_the_name_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row.variable: row for row in describe_settings(EmbedLikeSettings)}
    assert len(rows) == len(EmbedLikeSettings.model_fields)
    assert all(row.description and row.type for row in rows.values())
    assert rows["FOVEA_EMBED_MAX_IMAGES"].default == "32"
    assert rows["FOVEA_EMBED_PORT"].default == "8103"
    for variable, row in rows.items():
        if row.default not in (None, "None"):
            monkeypatch.setenv(variable, str(row.default))
    assert read_settings(EmbedLikeSettings) == EmbedLikeSettings()


@pytest.mark.parametrize(("text", "num_bytes"), [("1000", 1000), ("64MiB", 2**26), ("64Mi", 2**26), ("2GB", 2 * 10**9)])
def test_a_number_of_bytes_may_have_a_unit(monkeypatch: pytest.MonkeyPatch, text: str, num_bytes: int) -> None:
    monkeypatch.setenv("FOVEA_EMBED_MEMORY_BYTES", text)
    assert read_settings(EmbedSettings).memory_bytes == num_bytes


@pytest.mark.parametrize("text", ["-1", "2 GBs", "much"])
def test_what_is_no_number_of_bytes_is_blamed_on_its_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FOVEA_EMBED_MEMORY_BYTES", text)
    with pytest.raises(SettingsError, match="FOVEA_EMBED_MEMORY_BYTES"):
        read_settings(EmbedSettings)


def test_the_variable_of_a_setting_is_the_one_that_was_given_or_that_changes_its_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert variable_of(EmbedSettings, "max_body_bytes") == "FOVEA_MAX_BODY_BYTES"
    assert variable_of(GenerateSettings, "max_body_bytes") == "FOVEA_GENERATE_MAX_BODY_BYTES"
    monkeypatch.setenv("FOVEA_MAX_BODY_BYTES", "1000")
    assert variable_of(GenerateSettings, "max_body_bytes") == "FOVEA_MAX_BODY_BYTES"
    monkeypatch.setenv("FOVEA_EMBED_MAX_BODY_BYTES", "1000")
    assert variable_of(EmbedSettings, "max_body_bytes") == "FOVEA_EMBED_MAX_BODY_BYTES"
