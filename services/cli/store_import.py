"""`fovea store import`: publish what lies on the Hugging Face Hub, in a folder or in one file."""

import importlib
import re
import signal
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from pydantic import JsonValue
from rich.filesize import decimal as human_bytes

from services.core.audit import AuditLog
from services.core.durable_files import write_durably
from services.core.errors import FoveaError
from services.core.memory import memory_within_limits
from services.core.printable import first_line
from services.core.store.errors import InvalidCheckpoint, StoreUnavailable
from services.core.store.manifest import MAX_NAME_LENGTH, CheckpointInfo, check_sizes
from services.core.store.store import Store
from services.core.store.versions import Version

# The engine for each kind of checkpoint; `load` of all but one takes the device options unchanged.
ENGINES = {
    "focallens-clip": ("services.embed.model.focallens_engine", "FocalLensEngine"),
    "focallens-mllm": ("services.embed.model.mllm_engine", "MllmEngine"),
    "fsc-clip": ("services.score.engine", "ScoreEngine"),
    "instructblip": ("services.embed.model.instructblip_engine", "InstructBlipEngine"),
    "magiclens": ("services.embed.model.magiclens_engine", "MagicLensEngine"),
    "open-clip": ("services.embed.model.plain_engine", "PlainEngine"),
    "t5-student": ("services.predict.engine", "PredictEngine"),
    "vlm-embedding": ("services.embed.model.vlm_engine", "VlmEngine"),
    "causal-lm": ("services.generate.engine", "GenerateEngine"),
    "cross-encoder": ("services.generate.model.reranker_engine", "CrossEncoderEngine"),
    "qwen3-reranker": ("services.generate.model.reranker_engine", "Qwen3RerankerEngine"),
    "mxbai-rerank-v2": ("services.generate.model.reranker_engine", "MxbaiRerankEngine"),
    "qwen3-vl-reranker": ("services.generate.model.vl_reranker_engine", "Qwen3VlRerankerEngine"),
}


class NoReference(Exception):
    """The folder can't be run here; the message says why, and can be shown to users."""


def write_reference(kind: str, directory: Path, source: str | None = None) -> None:
    """Check a folder with its engine, and write `reference.json` into it. The check compares with an existing one,
    which is kept. Errors name the folder, or the `source` that it was made of.

    Raises InvalidCheckpoint for a folder that does not load or pass; NoReference for a kind that no service runs, and
    where packages or memory are missing or the folder can't be written to.
    """
    if kind not in ENGINES:
        raise NoReference(f"no service of Fovea's own runs checkpoints of kind {kind!r}, only {', '.join(ENGINES)}")
    if find_spec("torch") is None:
        raise NoReference("torch is not installed")
    from services.core.serving.served_checkpoint import VersionRefused
    from services.core.serving.tokenizer_trial import try_tokenizers
    from services.nn.broken_model import BrokenModel
    from services.nn.model_configs import unexpected
    from services.nn.reference_outputs import REFERENCE_FILE, make_reference

    faults: tuple[type[Exception], ...] = (FoveaError, BrokenModel, *unexpected())
    shown = source or str(directory)
    faults_of_files: tuple[type[Exception], ...] = (OSError, *faults)
    try:
        try_tokenizers(shown, directory)
        engine = _load(kind, directory)
    except VersionRefused as error:
        raise InvalidCheckpoint(str(error)) from error
    except StoreUnavailable as error:
        raise NoReference(str(error)) from error
    except (ImportError, MemoryError) as error:
        raise NoReference(f"it can't be loaded here: {error!r}") from error
    except faults_of_files as error:
        reason = first_line(error).replace(str(directory), shown)
        unchecked = " (--no-reference: publish unchecked)" if source is None else ""
        raise InvalidCheckpoint(f"{shown} can't be loaded as {kind}: {reason}{unchecked}") from error
    try:
        engine.self_check()
        if not (directory / REFERENCE_FILE).exists():
            write_durably(directory / REFERENCE_FILE, [make_reference(engine)])
    except faults as error:
        cure = " (--chat-template gives it another)" if source and getattr(error, "param", None) == "messages" else ""
        raise InvalidCheckpoint(f"{shown}: {error}{cure}") from error
    except OSError as error:
        raise NoReference(f"{directory}: {error.strerror}") from error


def _load(kind: str, directory: Path) -> Any:
    module = importlib.import_module(ENGINES[kind][0])
    load: Callable[..., Any] = getattr(module, ENGINES[kind][1]).load
    options = importlib.import_module("services.nn.devices").DeviceOptions()
    return load(directory, module.EngineOptions(device=options) if kind == "causal-lm" else options)


@dataclass(frozen=True)
class Import:
    """A source that was recognised: its plan, and how its checkpoint is built."""

    source: Any
    plan: Any
    build: Callable[[Path], None]
    name: str
    licence: str | None

    def info(self) -> CheckpointInfo:
        """Describe the checkpoint for its manifest."""
        info: CheckpointInfo | None = self.plan.info
        if info is not None:
            return info
        source: dict[str, JsonValue] = {"uri": self.source.uri, "revision": self.source.revision, **self.plan.facts}
        return CheckpointInfo(kind=self.plan.kind, licence=self.licence, source=source)

    def files(self) -> list[tuple[str, int | None, str]]:
        """List every file of source and checkpoint, with its bytes, None before it is made, and what becomes of it."""
        plan, sizes = self.plan, self.source.files
        fates = dict.fromkeys(plan.placed, "taken")
        fates |= {path: f"converted to {name}" for path, name in plan.converted.items()}
        fates |= dict.fromkeys(plan.all_read, "read") | {path: f"left: {why}" for path, why in plan.left.items()}
        fates = dict.fromkeys(sizes, "taken as text") | fates
        listed = [(path, sizes[path], fate) for path, fate in fates.items()]
        made = [(path, None, f"made of {of}") for path, of in plan.made.items()]
        return [*listed, *made]

    def rows(self) -> list[tuple[str, str, str]]:
        """List the files for people."""
        return [(path, "" if size is None else human_bytes(size), fate) for path, size, fate in self.files()]

    def content(self, aliases: Sequence[str]) -> dict[str, Any]:
        """Return the plan as plain JSON."""
        serving = {"services": list(self.plan.services), "settings": self.settings(aliases)}
        files = [{"path": path, "size_bytes": size, "fate": fate} for path, size, fate in self.files()]
        return {"name": self.name, **self.info().model_dump(mode="json"), **serving, "files": files}

    def lacks_memory(self) -> str | None:
        """Say what this machine lacks to load the model on its CPU, in single precision; None if it lacks nothing."""
        needed = 4 * int(str(self.plan.facts.get("num_parameters") or 0))
        _, available = memory_within_limits()
        if needed <= available:
            return None
        return f"loading it takes {human_bytes(needed)}, and {human_bytes(available)} are free"

    def put_together(self) -> AbstractContextManager[Path]:
        """Return a context with the checkpoint's folder, as `put_together` of `services.jobs.imports.plan` does."""
        from services.jobs.imports.plan import put_together

        return put_together(self.source, self.plan, self.build)

    def publish(
        self, store: Store, audit: AuditLog, aliases: Sequence[str], *, reference: bool
    ) -> tuple[Version, dict[str, str]]:
        """Publish what was planned; returns the version, and the other versions that the aliases named before.

        Raises InvalidCheckpoint where an alias names a version of another kind, which another service serves.
        """
        self._check_kind(store, aliases)
        with self.put_together() as folder:
            if reference and (told := self.lacks_memory()) is not None:
                typer.echo(f"fovea store: published without reference outputs: {told}", err=True)
            elif reference:
                write_outputs(self.plan.kind, folder, self.source.uri)
                if self.plan.info is not None and "reference.json" not in self.plan.taken:
                    (folder / "reference.json").unlink(missing_ok=True)  # it would be another version
            where = {"store": store.label, "model": self.name}
            where |= {"source": self.source.uri, "revision": self.source.revision}
            with audit.command("store.import", **where, aliases=list(aliases)) as entry:
                version = store.publish(self.name, folder, self.info(), alias=None)
                entry["version"] = version.id
                before = {alias: target.version for alias, target in store.aliases(self.name).items()}
                for alias in aliases:
                    store.promote(version.name, version.id, alias)
        return version, {each: before[each] for each in aliases if before.get(each, version.id) != version.id}

    def _check_kind(self, store: Store, aliases: Sequence[str]) -> None:
        named = store.aliases(self.name) if self.name in store.names() else {}
        for alias in [one for one in aliases if one in named]:
            kind = store.manifest(self.name, named[alias].version).kind
            if kind != self.plan.kind:
                raise InvalidCheckpoint(
                    f"{self.name}@{alias} is a {kind}, and this is a {self.plan.kind}: give it a --name of its own"
                )

    def settings(self, aliases: Sequence[str]) -> list[str]:
        """List the settings that serve the model by one of its aliases, one for each service that can."""
        model = self.name if "latest" in aliases else f"{self.name}@{aliases[0]}"
        return [f"FOVEA_{service.upper()}_MODELS={model}" for service in self.plan.services]


def write_outputs(kind: str, directory: Path, source: str | None = None) -> None:
    """Write a folder's reference outputs, or say why it is published without them."""
    try:
        write_reference(kind, directory, source)
    except NoReference as missing:
        typer.echo(f"fovea store: published without reference outputs: {missing}", err=True)


@contextmanager
def interruptions() -> Iterator[None]:
    """Say at Ctrl-C that nothing is published yet, and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Stopped before anything was published. Run the same command to continue.", err=True)
        raise typer.Exit(128 + signal.SIGINT) from None


def recognise(text: str, given: Mapping[str, str | None], name: str | None, licence: str | None) -> Import:
    """Open a source and plan its import by the options that were given. Raises Refused for what can't be imported, and
    says why.
    """
    from services.core.refusals import Refused
    from services.embed.imports.instructblip import InstructBlipImport
    from services.embed.imports.llava import LlavaImport
    from services.embed.imports.magiclens import MagicLensImport
    from services.embed.imports.matryoshka import widths_of
    from services.embed.imports.vlm import VlmImport
    from services.embed.outputs import TRAINED_WIDTHS
    from services.generate.imports.language_model import LanguageModelImport
    from services.generate.imports.rerankers import reranker_import
    from services.jobs.imports.clip import ClipImport
    from services.jobs.imports.pushed import PushedVersion
    from services.jobs.imports.source import licence_of, open_source, read_object
    from services.predict.imports.t5 import T5Import

    source = open_source(text)
    config = read_object(source, "config.json")
    for field, kind in (("model_type", str), ("architectures", list)):
        if not isinstance(config.get(field) or kind(), kind):
            raise Refused(f"config.json: {field} is {config[field]!r}: it must be a {kind.__name__}")
    left = dict(given)
    importer: Any
    if (importer := PushedVersion.of(source)) is not None:
        left["--licence"] = licence
    elif T5Import.recognises(config):
        prefix = left.pop("--label-prefix") or ""
        importer = T5Import(source, left.pop("--task"), prefix, left.pop("--rationale-prefix"))
    elif ClipImport.recognises(source, config):
        importer = ClipImport(source, left.pop("--architecture"))
    elif MagicLensImport.recognises(source):
        importer = MagicLensImport(source)
    elif InstructBlipImport.recognises(config):
        importer = InstructBlipImport(source)
    elif LlavaImport.recognises(config) and given["--embed-by"] is None:
        importer = LlavaImport(source)
    elif given["--embed-by"] is None and (reranker := reranker_import(source, config)) is not None:
        importer = reranker
    elif LanguageModelImport.recognises(config):
        importer = LanguageModelImport(source, left.pop("--chat-template"))
    elif VlmImport.recognises(config):
        importer = VlmImport(source, left.pop("--embed-by"))
    else:
        raise Refused(f"{source.uri} can't be imported: {_unknown(source.files, config)}")
    plan = importer.plan()
    if plan.info is None and "embed" in plan.services and (widths := widths_of(source, left.pop("--dimensions"))):
        plan = replace(plan, facts={**plan.facts, TRAINED_WIDTHS: widths})
    if unused := [option for option, value in left.items() if value is not None]:
        why = ", which is imported as it was published" if plan.info is not None else ""
        raise Refused(f"{unused[0]} does not apply to {source.uri}{why}")
    check_sizes(source.uri, {path: size for path, size in source.files.items() if path not in plan.left})
    licence = licence or (licence_of(source) if plan.info is None else plan.info.licence)
    return Import(source, plan, importer.build, name or store_name(source.name), licence)


def _unknown(paths: Collection[str], config: Mapping[str, Any]) -> str:
    """Say what a source is instead of a model that can be imported."""
    from services.core.refusals import shown_names

    if "adapter_config.json" in paths:
        return "it is an adapter; merge it into its model first (merge_and_unload of peft), and import the result"
    if any(path.endswith(".gguf") for path in paths):
        return "GGUF is llama.cpp's own format; import the repository that it was made from"
    if not config and (pickles := sorted(path for path in paths if path.endswith(".pkl"))):
        return f"it is a folder; a MagicLens is one file, so name {' or '.join(pickles)} in it"
    within = sorted(path.removesuffix("/config.json") for path in paths if re.fullmatch("[^/]+/config.json", path))
    if not config and within:
        return f"it has no config.json, but {shown_names(within)} in it has: name that folder"
    kind = config.get("model_type")
    if kind == "siglip":
        return "of SigLIP, import the repository in open_clip's layout, such as timm/ViT-B-16-SigLIP"
    what = f"its config.json is of a {kind!r}" if kind else "it has no config.json that names an architecture"
    known = "causal language and vision-language models, rerankers, T5s, CLIPs, InstructBLIP and MagicLens can be"
    return f"{what}; {known} (docs/guide/import.md lists them)"


def store_name(text: str) -> str:
    """Make a name that the store accepts of a source's: `Qwen2.5-7B-Instruct` becomes `qwen2.5-7b-instruct`.

    Raises InvalidCheckpoint if nothing of it can stand in a name.
    """
    plain = unicodedata.normalize("NFKD", text.casefold()).encode("ascii", "ignore").decode()
    name = re.sub(r"[^a-z0-9._-]+", "-", plain).strip("-._")[:MAX_NAME_LENGTH].rstrip("-._")
    if not name:
        raise InvalidCheckpoint(f"no name can be made of {text!r}: give --name")
    return name


def described(facts: Mapping[str, JsonValue]) -> list[str]:
    """Write the facts of a model as lines."""
    return [f"{fact.replace('_', ' ')}: {_told(fact, value)}" for fact, value in facts.items()]


def _told(fact: str, value: JsonValue) -> str:
    if fact.endswith("bytes") or fact.startswith("bytes"):
        return human_bytes(int(str(value)))
    return f"{value:,}" if isinstance(value, int) else str(value)


def room_needed(facts: Mapping[str, JsonValue]) -> str:
    """Say what serving a model takes of a device's memory, as far as its facts tell."""
    weights, per_token = facts.get("weight_bytes"), facts.get("bytes_per_token")
    needed = f"{human_bytes(int(str(weights)))} for its weights as stored"
    if (parameters := facts.get("num_parameters")) is not None:
        needed += f", {human_bytes(4 * int(str(parameters)))} on a CPU"
    if per_token is None:
        return needed
    return f"{needed}, and {human_bytes(1000 * int(str(per_token)))} for each thousand tokens of prompts and answers"


def summary(planned: Import) -> list[str]:
    """Write what is imported, as what, and what it needs, as lines."""
    return [
        f"{planned.source.uri}, revision {planned.source.revision or 'unknown'}",
        f"{planned.name}: {planned.plan.kind}, served by {' and '.join(planned.plan.services) or 'no service'}",
        f"licence: {planned.licence or 'not named by the source; --licence says it'}",
        *described(planned.plan.facts),
        f"memory: {room_needed(planned.plan.facts)}",
    ]
