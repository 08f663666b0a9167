"""The calibration profile beside a checkpoint: written, read back, refused where it makes no sense."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from services.generate.model.profile import (
    OFF,
    PROFILE_FILE,
    BadProfile,
    BiasTable,
    CalibrationProfile,
    last_half,
    length_bucket,
    paper_profile,
    read_profile,
    read_profile_file,
    write_profile,
)

CHOSEN = CalibrationProfile(
    enabled=True,
    bias="cached",
    temperature=1e-3,
    layers=(2, 1),
    rel_layers=(1,),
    row_scope="tail",
    dummy_tokens=8,
    window=32,
    gain={"vanilla": 0.5, "calibrated": 0.6},
    tables=(
        BiasTable(bucket=16, attention=(0.02, 0.01), num_prompts=40),
        BiasTable(bucket=64, attention=(0.002, 0.001), num_prompts=40),
        BiasTable(bucket=16, attention=(0.02, 0.01, 0.03), num_prompts=40),
    ),
)


def test_a_profile_written_beside_a_checkpoint_is_read_back_as_it_was(tmp_path: Path) -> None:
    assert write_profile(CHOSEN, tmp_path) == tmp_path / PROFILE_FILE
    assert read_profile(tmp_path) == CHOSEN
    write_profile(OFF, tmp_path)
    assert read_profile(tmp_path) == OFF
    assert not OFF.enabled


def test_an_enabled_profile_that_does_not_name_its_dummies_was_made_with_whole_ones(tmp_path: Path) -> None:
    for profile, dummy in ((CHOSEN, "whole"), (OFF, "framed")):
        fields = profile.model_dump(mode="json", exclude={"dummy"})
        (tmp_path / PROFILE_FILE).write_text(json.dumps(fields))
        assert read_profile(tmp_path) == profile.model_copy(update={"dummy": dummy})
        assert read_profile_file(tmp_path / PROFILE_FILE) == read_profile(tmp_path)


def test_tables_are_of_the_dummies_that_they_were_measured_with() -> None:
    assert CHOSEN.changed({"dummy": CHOSEN.dummy, "temperature": 1}).tables == CHOSEN.tables
    assert CHOSEN.changed({"dummy": "whole", "bias": "tree"}).tables == ()
    with pytest.raises(ValidationError, match="no tables for a cached bias"):
        CHOSEN.changed({"dummy": "whole"})


def test_a_profile_from_before_heads_has_none_and_one_with_heads_is_read_back(tmp_path: Path) -> None:
    fields = CHOSEN.model_dump(mode="json", exclude={"rel_heads"})
    (tmp_path / PROFILE_FILE).write_text(json.dumps(fields))
    assert read_profile(tmp_path) == CHOSEN
    with_heads = CHOSEN.changed({"rel_heads": ((1, 3), (1, 0), (1, 3))})
    assert with_heads.rel_heads == ((1, 0), (1, 3))
    write_profile(with_heads, tmp_path)
    assert read_profile(tmp_path) == with_heads


def test_a_head_that_the_model_has_not_is_named() -> None:
    with_heads = CHOSEN.changed({"rel_heads": ((1, 3),)})
    assert with_heads.check_layers(3, 4) is with_heads
    with pytest.raises(BadProfile, match="rel_heads name head 3; the model's are 0 to 2"):
        with_heads.check_layers(3, 3)


def test_a_checkpoint_without_a_profile_has_none(tmp_path: Path) -> None:
    assert read_profile(tmp_path) is None


def test_the_papers_settings_are_the_last_half_of_the_layers_rel_of_all_t_5e_5_and_exact() -> None:
    profile = paper_profile(32)
    assert profile.layers == tuple(range(16, 32))
    assert profile.rel_layers == tuple(range(32))
    assert (profile.temperature, profile.bias, profile.rel_scope) == (5e-5, "exact", "mean")
    assert profile.enabled
    assert last_half(5) == (2, 3, 4)
    assert (profile.source, profile.gain) == ("published", {})


def test_what_a_profile_did_not_choose_is_the_papers() -> None:
    assert OFF.completed(32) == paper_profile(32).model_copy(update={"enabled": False})
    tried = OFF.model_copy(update={"gain": {"vanilla": 0.5}})
    assert tried.completed(4).source == "measured"
    assert tried.completed(4).bias == "exact"
    of_ranking = OFF.model_copy(update={"rel_layers": (1,), "bias": "single", "temperature": 0.5})
    assert of_ranking.completed(4) == of_ranking.model_copy(update={"layers": (2, 3)})
    assert CHOSEN.completed(4) == CHOSEN


def test_a_profile_that_does_not_say_where_it_is_from_was_measured(tmp_path: Path) -> None:
    (tmp_path / PROFILE_FILE).write_text(CHOSEN.model_dump_json(exclude={"source"}))
    assert read_profile(tmp_path) == CHOSEN
    assert CHOSEN.source == "measured"


def test_layers_are_kept_in_order_and_once() -> None:
    profile = CalibrationProfile(enabled=True, layers=(3, 1, 3), rel_layers=(2, 0))
    assert (profile.layers, profile.rel_layers) == ((1, 3), (0, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": ()}, "at least one layer in each"),
        ({"rel_layers": ()}, "at least one layer in each"),
        ({"temperature": 0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"layers": (-1,)}, "layers"),
        ({"bias": "guessed"}, "bias"),
        ({"tables": ()}, "no tables"),
        ({"rel_scope": "per_head"}, "per_head"),
        ({"rel_scope": "per_head", "bias": "tree"}, "layers must be among rel_layers"),
        ({"rel_heads": ((1, -1),)}, "rel_heads"),
        ({"rel_heads": ((0, 1),)}, "rel_layers must be the layers of rel_heads"),
        ({"rel_heads": ((1, 0), (2, 0))}, "rel_layers must be the layers of rel_heads"),
        ({"rel_scope": "per_head", "bias": "tree", "layers": (1,), "rel_heads": ((1, 0),)}, "rel_heads are for a mean"),
        ({"tables": (CHOSEN.tables[0], CHOSEN.tables[0])}, "two tables"),
        ({"gain": {"vanilla": float("inf")}}, "gain"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_settings_that_contradict_themselves_are_refused_and_named(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    fields = CHOSEN.model_dump() | changes
    with pytest.raises(ValidationError, match=message):
        CalibrationProfile.model_validate(fields)
    (tmp_path / PROFILE_FILE).write_text(json.dumps(fields, default=BiasTable.model_dump))
    with pytest.raises(BadProfile, match=message):
        read_profile(tmp_path)


def test_a_file_that_is_no_json_is_refused_by_its_path(tmp_path: Path) -> None:
    (tmp_path / PROFILE_FILE).write_text("{")
    with pytest.raises(BadProfile, match=PROFILE_FILE):
        read_profile(tmp_path)


def test_a_layer_that_the_model_has_not_is_named() -> None:
    assert CHOSEN.check_layers(3) is CHOSEN
    assert OFF.check_layers(1) is OFF
    with pytest.raises(BadProfile, match="layers name layer 2; the model's are 0 to 1"):
        CHOSEN.check_layers(2)
    with pytest.raises(BadProfile, match="rel_layers name layer 4"):
        CHOSEN.model_copy(update={"rel_layers": (4,)}).check_layers(4)


def test_the_cached_bias_is_that_of_as_many_documents_and_the_nearest_length() -> None:
    assert CHOSEN.cached_attention([16, 15]) == (0.02, 0.01)
    assert CHOSEN.cached_attention([100, 100]) == (0.002, 0.001)
    assert CHOSEN.cached_attention([1, 1]) == (0.02, 0.01)
    assert CHOSEN.cached_attention([20, 20]) == (0.02, 0.01)
    assert CHOSEN.cached_attention([4000, 4000]) == (0.002, 0.001)
    assert CHOSEN.cached_attention([300, 2, 0]) == (0.02, 0.01, 0.03)
    assert CHOSEN.cached_attention([16]) is None
    assert CHOSEN.cached_attention([]) is None


@pytest.mark.parametrize(
    ("num_tokens", "bucket"),
    [([], 1), ([0], 1), ([1], 1), ([2], 2), ([3], 4), ([16, 16], 16), ([16, 17], 32), ([100] * 20, 128)],
)
def test_a_bucket_is_the_power_of_two_that_holds_the_mean_length(num_tokens: list[int], bucket: int) -> None:
    assert length_bucket(num_tokens) == bucket
