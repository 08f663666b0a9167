"""Model cards: what the manifest of a version says, as the Hugging Face Hub reads and shows it."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue
from rich.filesize import decimal as human_bytes

from services.core.refusals import Refused
from services.core.store.errors import InvalidCheckpoint, NotFoundInStore
from services.core.store.manifest import Manifest, is_version_id
from services.core.store.store import Store

LIBRARY = "fovea"
# Identifiers that the Hub accepts as a licence; any other is `other` with a name.
HUB_LICENCES = frozenset(
    """
    afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0 bigscience-openrail-m bsd
    bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0
    cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0
    cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-permissive-2.0 cdla-sharing-1.0
    creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 gemma gfdl gpl gpl-2.0
    gpl-3.0 isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 lppl-1.3c mit mpl-2.0 ms-pl
    ncsa odbl odc-by ofl-1.1 openrail openrail++ osl-3.0 other pddl postgresql unknown unlicense wtfpl zlib
    """.split()  # noqa: SIM905
)
# Words of licences under which a checkpoint may not be passed on.
FORBIDS_REDISTRIBUTION = re.compile(
    r"proprietary|confidential|all[ -]rights[ -]reserved|\bunlicensed\b|internal[ -](use|only)"
    r"|(no|not[ -]for|without)[ -](re)?distribution|non[ -]?(re)?distributable",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Kind:
    """The services that serve a kind of checkpoint, its task on the Hub, and the method behind it."""

    services: tuple[str, ...]
    task: str
    method: str


_FOCALLENS = "FocalLens: image embeddings conditioned on a text"
_RERANKER = "reranking of documents by a model trained for it"
KINDS: Mapping[str, Kind] = {
    "blind-classifier": Kind(
        (), "text-classification", "SugarCrepe: the model without images that `fovea curate` filters hard negatives by"
    ),
    "causal-lm": Kind(
        ("generate",), "text-generation", "Found in the Middle: answers over documents, positional bias calibrated"
    ),
    "cross-encoder": Kind(("generate",), "text-ranking", _RERANKER),
    "focallens-clip": Kind(("embed",), "image-feature-extraction", _FOCALLENS),
    "focallens-mllm": Kind(("embed",), "image-feature-extraction", f"{_FOCALLENS}, by a vision-language model"),
    "fsc-clip": Kind(("score",), "zero-shot-image-classification", "FSC-CLIP: a CLIP tuned for composition"),
    "instructblip": Kind(("embed",), "image-feature-extraction", "InstructBLIP: image embeddings by an instruction"),
    "magiclens": Kind(("embed",), "image-feature-extraction", "MagicLens: image retrieval by an instruction"),
    "open-clip": Kind(("score", "embed"), "zero-shot-image-classification", "CLIP: images and texts in one space"),
    "qwen3-reranker": Kind(("generate",), "text-ranking", _RERANKER),
    "mxbai-rerank-v2": Kind(("generate",), "text-ranking", _RERANKER),
    "qwen3-vl-reranker": Kind(("generate",), "text-ranking", _RERANKER),
    "t5-student": Kind(
        ("predict",), "text-generation", "Distilling step-by-step: a student that gives a label and its rationale"
    ),
    "vlm-embedding": Kind(("embed",), "image-feature-extraction", "embeddings of a vision-language model by a prompt"),
}


def services_of(kind: str) -> tuple[str, ...]:
    """List the services that serve a kind of checkpoint."""
    return KINDS[kind].services if kind in KINDS else ()


def lineage(store: Store, manifest: Manifest) -> list[Manifest]:
    """Return the manifests of a version and of its bases, as far as the store holds them.

    Raises Refused if the licence of one of them forbids to pass it on.
    """
    found = [manifest]
    while (base := (found[-1].base or "").partition("@"))[1] and is_version_id(base[2]):
        try:
            found.append(store.manifest(base[0], base[2]))
        except (NotFoundInStore, InvalidCheckpoint):
            break
    for each in found:
        if each.licence and FORBIDS_REDISTRIBUTION.search(each.licence):
            of = "" if each is manifest else ", its base,"
            told = f"{each.name}@{each.version}{of} has the licence {each.licence!r}, which forbids redistribution"
            raise Refused(f"{told}: nothing is uploaded")
    return found


def model_card(found: Sequence[Manifest], import_command: str) -> str:
    """Write the README.md of a repository for the first of a `lineage`."""
    from huggingface_hub import ModelCardData

    manifest, kind = found[0], KINDS.get(found[0].kind)
    licence = "-".join((manifest.licence or "").lower().split())
    is_other = bool(licence) and licence not in HUB_LICENCES
    data = ModelCardData(
        license="other" if is_other else licence or None,
        license_name=re.sub(r"[^a-z0-9.]+", "-", licence).strip("-.") or None if is_other else None,
        base_model=_base_on_hub(found),
        library_name=LIBRARY,
        pipeline_tag=kind.task if kind else None,
        tags=[LIBRARY, manifest.kind, *services_of(manifest.kind)],
    )
    facts = {
        "service": ", ".join(f"`{service}`" for service in services_of(manifest.kind)) or None,
        "method": kind.method if kind else None,
        "kind": f"`{manifest.kind}`",
        "licence": manifest.licence or "not stated",
        "base model": manifest.base or _base_on_hub(found),
        **{fact.replace("_", " "): value for fact, value in (manifest.source or {}).items()},
        "version": f"`{manifest.version}`",
        "files": f"{len(manifest.files)}, {human_bytes(manifest.size_bytes)}",
    }
    serve = [f"FOVEA_{service.upper()}_MODELS={manifest.name} fovea up" for service in services_of(manifest.kind)]
    parts = [
        f"---\n{data.to_yaml()}\n---",
        f"# {manifest.name}",
        manifest.statement,
        _table("", facts),
        "## Use",
        "\n".join(f"    {line}" for line in (import_command, *serve)),
        f"The import compares every file with its digest and gives the same version, `{manifest.version}`.",
        _table("## Training", {**manifest.training, "seed": manifest.seed, "code revision": manifest.code_revision}),
        _table("## Figures", manifest.metrics, "As they were recorded when the version was published."),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _base_on_hub(found: Sequence[Manifest]) -> str | None:
    """Return the repository of the Hub that a version or the nearest of its bases was imported from."""
    uris = (str((each.source or {}).get("uri")) for each in found)
    return next((uri.removeprefix("hf://") for uri in uris if uri.startswith("hf://")), None)


def _table(title: str, values: Mapping[str, Any], note: str = "") -> str:
    """Write what is known of the values as a table under a title; nothing where nothing is known."""
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in _flat(values)]
    if not rows:
        return ""
    return "\n\n".join(part for part in (title, note, "\n".join(["| | |", "| --- | --- |", *rows])) if part)


def _flat(values: Mapping[str, JsonValue], before: str = "") -> Iterator[tuple[str, JsonValue]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}: ")
        elif value is not None:
            yield f"{before}{name}", value


def _cell(value: JsonValue) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value)
    return " ".join(text.split()).replace("|", "\\|")
