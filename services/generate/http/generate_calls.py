"""Conversion of `/generate` requests into calls of the model, and of its results into document reports."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from services.core.errors import InvalidField, check_count
from services.generate.generation.generation import LayerMeans, Progress, PromptFacts
from services.generate.http.generate_schemas import (
    AnyDocument,
    AppliedCalibration,
    CalibrationOptions,
    DocumentReport,
    ExplainedDocument,
    LayerReport,
    ModelCalibration,
)
from services.generate.model.profile import BadProfile, CalibrationProfile, last_half, paper_profile
from services.generate.prompts.templates import Document


def documents_of(given: Sequence[AnyDocument], max_documents: int) -> tuple[Document, ...]:
    """The documents of a request. Raises TooLarge for more than the limit."""
    check_count("documents", len(given), max_documents)
    return tuple(Document(one) if isinstance(one, str) else Document(one.text, one.title, one.id) for one in given)


def calibration_of(
    options: CalibrationOptions | None, profile: CalibrationProfile, num_layers: int
) -> CalibrationProfile:
    """A checkpoint's profile with a request's changes.

    If the profile has no layers, layers and temperature that a request leaves out are the paper's. The profile's tables
    are used only for the dummies that they were measured with. Raises InvalidField for options that the model or the
    profile does not allow.
    """
    if options is None:
        return profile
    changes: dict[str, Any] = options.model_dump(exclude_none=True)
    if not profile.layers or not profile.rel_layers:
        lent = paper_profile(num_layers).model_dump(include={"temperature", "layers", "rel_layers"})
        changes = {**lent, **changes}
    if (named := changes.get("layers")) in ("last_half", "all"):
        changes["layers"] = last_half(num_layers) if named == "last_half" else tuple(range(num_layers))
    try:
        return profile.changed(changes).check_layers(num_layers)
    except BadProfile as error:
        raise InvalidField(f"calibration.layers: {error}.", param="calibration.layers") from None
    except ValidationError as error:
        reason = "; ".join(one["msg"].removeprefix("Value error, ") for one in error.errors())
        raise InvalidField(f"calibration: {reason}.", param="calibration") from None


def without_leading_space(progress: Progress, text_so_far: str) -> Progress:
    """Strip an answer's leading white space from a step; its tokens do not change.

    The first token of an answer often contains the space that separates the answer from the prompt.
    """
    text = progress.text if text_so_far else progress.text.lstrip()
    return progress if text == progress.text else replace(progress, text=text)


def applied_of(facts: PromptFacts) -> AppliedCalibration | None:
    """Report how an answer was calibrated; None if it was not."""
    return None if facts.applied is None else AppliedCalibration(**_reported(facts.applied))


def calibration_report(profile: CalibrationProfile) -> ModelCalibration:
    """Report the calibration of requests that do not choose their own."""
    return ModelCalibration(enabled=profile.enabled, **_reported(profile))


def _reported(profile: CalibrationProfile) -> dict[str, Any]:
    return profile.model_dump(include=set(AppliedCalibration.model_fields))


def reports_of(documents: Sequence[Document], facts: PromptFacts) -> list[DocumentReport]:
    """Report the attention and relevance of each document, in the order of the request."""
    positions = {index: position for position, index in enumerate(facts.order)}
    return [
        DocumentReport(
            id=document.id,
            index=index,
            position=positions[index],
            attention=facts.attention[positions[index]],
            relevance=facts.relevance[positions[index]] if facts.relevance is not None else None,
        )
        for index, document in enumerate(documents)
    ]


def explained_reports_of(documents: Sequence[Document], facts: PromptFacts) -> list[ExplainedDocument]:
    """Report the same with each document's attention and relevance by layer, if the facts have them."""
    reports = reports_of(documents, facts)
    return [ExplainedDocument(**one.model_dump(), by_layer=_by_layer(facts.by_layer, one.position)) for one in reports]


def _by_layer(means: LayerMeans | None, position: int) -> LayerReport | None:
    if means is None:
        return None
    relevance = None if means.relevance is None else [layer[position] for layer in means.relevance]
    return LayerReport(attention=[layer[position] for layer in means.attention], relevance=relevance)
