"""The file of pools: what it may say, and errors that name the setting and the field."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.app import create_gateway
from gateway.settings import GatewaySettings
from services.core.settings import SettingsError, read_settings
from tests.gateway.routing.pools import write_pools


def pool(**fields: Any) -> dict[str, Any]:
    given = {"name": "vicuna", "service": "generate", "models": ["vicuna"], "urls": ["http://vicuna:8102"], **fields}
    return {name: value for name, value in given.items() if value is not None}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, r"^FOVEA_GATEWAY_POOLS: there is no file .*pools\.json; create it, or unset the setting\.$"),
        ("{", r"^FOVEA_GATEWAY_POOLS: .*pools\.json:1: not JSON"),
        ("[]", r"the file: Input should be an object"),
        ("{}", r"pools: Field required"),
        ({"pool": [], "pools": []}, r"pool: Extra inputs"),
        ([pool(nane="x")], r"pools\.0\.nane: Extra inputs"),
        ([pool(name="Vicuna")], r"pools\.0\.name: String should match"),
        ([pool(name="-x")], r"pools\.0\.name: "),
        ([pool(name="x" * 64)], r"pools\.0\.name: "),
        ([pool(name="generate")], r"pools\.0\.name: .*'generate' is a name of the gateway's own"),
        ([pool(name="collections")], r"'collections' is a name of the gateway's own"),
        ([pool(name="embed-canary")], r"'embed-canary' is a name of the gateway's own"),
        ([pool(name="keys")], r"'keys' is a name of the gateway's own"),
        ([pool(service="paint")], r"pools\.0\.service: Input should be 'predict'"),
        ([pool(models=[])], r"pools\.0\.models: "),
        ([pool(models=None)], r"pools\.0\.models: Field required"),
        ([pool(models=["vicuna@latest"])], r"pools\.0\.models\.0: "),
        ([pool(models=[""])], r"pools\.0\.models\.0: "),
        ([pool(urls=[])], r"pools\.0\.urls: "),
        ([pool(urls=["vicuna:8102"])], r"pools\.0\.urls: .*'vicuna:8102' is not a base URL"),
        ([pool(urls=["http://vicuna/v1"])], r"pools\.0\.urls: .*only scheme, host and port"),
        ([pool(urls=["http://vicuna:http"])], r"pools\.0\.urls: .*no port from 0 to 65535"),
        ([pool(tasks=["nli"])], r"pools\.0: .*tasks: only predict has any, and 'vicuna' is of generate"),
        ([pool(), pool(models=["tulu"])], r"pools: .*name: two pools have 'vicuna'"),
        ([pool(), pool(name="other")], r"pools: .*models: two pools of generate have 'vicuna'"),
        ([pool(models=["a", "a"])], r"models: two pools of generate have 'a'"),
        (
            [pool(service="predict", tasks=["nli"]), pool(service="predict", name="b", models=["b"], tasks=["nli"])],
            r"tasks: two pools of predict have 'nli'",
        ),
    ],
)
def test_a_gateway_does_not_start_with_a_wrong_file_of_pools(tmp_path: Path, content: Any, complaint: str) -> None:
    path = tmp_path / "pools.json"
    if content is not None:
        whole = {"pools": content} if isinstance(content, list) else content
        path.write_text(whole if isinstance(whole, str) else json.dumps(whole))
    with pytest.raises(SettingsError, match=complaint):
        create_gateway(GatewaySettings(pools=path))


@pytest.mark.parametrize(
    "pools",
    [
        [],
        [pool()],
        # One name in two services is two models.
        [pool(), pool(name="eyes", service="embed")],
        [pool(models=["org/vicuna-7b", "Tulu_2.1"]), pool(name="x-1", service="predict", models=["a"], tasks=["a b"])],
        [pool(urls=["https://[::1]:8102", "http://10.0.0.1"])],
    ],
)
def test_a_gateway_starts_with_a_right_one(tmp_path: Path, pools: list[dict[str, Any]]) -> None:
    path = tmp_path / "pools.json"
    path.write_text(json.dumps({"pools": pools}))
    create_gateway(GatewaySettings(pools=path))


@pytest.mark.parametrize(
    ("wake_s", "pools", "told"),
    [
        ({"predct": 5}, None, "'predct'; did you mean predict?"),
        ({"vicunna": 5, "predict": 5}, [pool()], "'vicunna'; did you mean vicuna?"),
        # Pools have taken the place of the service's own processes.
        ({"generate": 5}, [pool()], "'generate'; known are predict, embed, score, vicuna."),
    ],
)
def test_seconds_for_a_name_that_nothing_has_are_refused_with_the_nearest(
    tmp_path: Path, wake_s: dict[str, float], pools: Any, told: str
) -> None:
    path = write_pools(tmp_path / "pools.json", *pools) if pools else None
    with pytest.raises(SettingsError) as refused:
        create_gateway(GatewaySettings(pools=path, wake_s=wake_s))
    assert str(refused.value) == f"FOVEA_GATEWAY_WAKE_S: no service and no pool is named {told}"
    create_gateway(GatewaySettings(pools=path, wake_s={"vicuna" if pools else "generate": 5}))


def test_the_guides_file_is_a_right_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "guide" / "operate.md").read_text()
    (example,) = re.findall(r"```json\n(\{\s+\"pools\".*?)```", text, re.DOTALL)
    path = tmp_path / "pools.json"
    path.write_text(example)
    create_gateway(GatewaySettings(pools=path))


def test_a_service_has_urls_of_its_own_only_where_the_environment_sets_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEA_GATEWAY_POOLS", "/etc/fovea-pools/pools.json")
    monkeypatch.setenv("FOVEA_GATEWAY_GENERATE_URLS", "http://127.0.0.1:8102")  # that of the default
    monkeypatch.setenv("FOVEA_GATEWAY_EMBED_URLS", "")
    settings = read_settings(GatewaySettings)
    assert settings.pools == Path("/etc/fovea-pools/pools.json")
    assert settings.has_own_urls("generate")
    assert not settings.has_own_urls("embed")
    assert not settings.has_own_urls("score")
