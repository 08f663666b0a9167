"""`fovea capacity`: what of a language model's cache fits into a device's memory, from its files' names and sizes."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from services.core.byte_sizes import binary_size, parse_bytes
from services.core.logs import log_warnings_to_stderr
from services.core.printable import printable
from services.core.settings import ServiceSettings
from services.core.store.checkpoint_files import packaged_starters, read_description
from services.core.store.errors import InvalidCheckpoint, NotFoundInStore
from services.core.store.store import Store
from services.generate.capacity import DEFAULT_SHARE, DTYPE_BYTES, CacheSize, Capacity, weights_as_served
from services.jobs.options import StoreUrl, command_line

CONFIG_FILE = "config.json"
# In the order in which a loader looks for them: one file, or an index that names the files.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
INDEX = ".index.json"
DEFAULT_CONTEXT = 4096
# Of a config without one.
DEFAULT_STORED_DTYPE = "float32"

# Services that may share a GPU with generate, and what each takes beside its weights: CUDA's libraries and a batch.
BESIDE = ("embed", "score", "predict")
WORKING_BYTES = 2 * 1024**3

app = command_line()


@dataclass(frozen=True)
class ModelFiles:
    """A model's files: sizes in bytes by path, and a function that reads a small one."""

    label: str
    sizes: Mapping[str, int]
    read: Callable[[str], bytes]

    def read_json(self, path: str) -> dict[str, Any]:
        """Raises InvalidCheckpoint for a missing file or another content than an object."""
        if path not in self.sizes:
            raise InvalidCheckpoint(f"{self.label} has no {path}")
        try:
            content = json.loads(self.read(path))
        except ValueError as error:
            raise InvalidCheckpoint(f"{self.label}: {path} is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise InvalidCheckpoint(f"{self.label}: {path} is not a JSON object")
        return content

    def weight_bytes(self) -> int:
        """Add up the files of weights that a loader would take. Raises InvalidCheckpoint where there are none."""
        found = next((name for name in WEIGHTS if name in self.sizes), None)
        if found is None:
            raise InvalidCheckpoint(f"{self.label} has none of {', '.join(WEIGHTS)}")
        names = [found]
        if found.endswith(INDEX):
            names = sorted(set(self.read_json(found).get("weight_map", {}).values()))
        if lacking := [name for name in names if name not in self.sizes] or not names:
            raise InvalidCheckpoint(f"{self.label}: {found} names files that are missing: {lacking}")
        return sum(self.sizes[name] for name in names)


def folder_files(folder: Path) -> ModelFiles:
    """Describe a folder of Hugging Face's layout; its files may be links, as in a Hub cache."""
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    return ModelFiles(str(folder), sizes, lambda name: (folder / name).read_bytes())


def stored_files(store: Store, reference: str) -> ModelFiles:
    """Describe a version in a store. Raises StoreError."""
    name, _, alias_or_version = reference.partition("@")
    manifest = store.manifest(name, store.resolve(name, alias_or_version or "latest"))
    sizes = {path: file.size_bytes for path, file in manifest.files.items()}
    return ModelFiles(f"{name}@{manifest.version}", sizes, lambda path: store.read_file(manifest, path))


def measure(files: ModelFiles, dtype: str, budget_bytes: int) -> Capacity:
    """Return what fits into a budget. Raises InvalidCheckpoint for what is no causal language model."""
    config = files.read_json(CONFIG_FILE)
    try:
        size = CacheSize.of(config)
    except ValueError as error:
        raise InvalidCheckpoint(f"{files.label}: {error}") from error
    stored_dtype = str(config.get("dtype") or config.get("torch_dtype") or DEFAULT_STORED_DTYPE)
    if "quantization_config" in config or stored_dtype not in DTYPE_BYTES:
        raise InvalidCheckpoint(f"{files.label}: weights are quantised or of a dtype that is not served")
    weight_bytes = weights_as_served(files.weight_bytes(), stored_dtype, dtype)
    return Capacity(weight_bytes, size.token_bytes(dtype), budget_bytes, size.max_context)


@app.command()
def capacity(  # noqa: PLR0913 - one parameter an option
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A folder with config.json and weights, or NAME[@ALIAS] in the store."),
    ],
    memory: Annotated[str, typer.Option(help="Memory of the device, such as 24GiB.")],
    share: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of the memory for weights and cache.")
    ] = DEFAULT_SHARE,
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of one stream: its prompt and its answer.",
            show_default=f"{DEFAULT_CONTEXT}, or the model's own if that is shorter",
        ),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SERVICE=MODEL",
            help="A model of embed, score or predict on the same GPU, which gets a share of its own; repeatable.",
        ),
    ] = None,
    dtype: Annotated[
        Literal["bfloat16", "float16", "float32"],
        typer.Option(help="Precision on the device; `auto` on CUDA is bfloat16."),
    ] = "bfloat16",
    store_url: StoreUrl = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document instead.")] = False,
) -> None:
    """Print the cache, the streams and the longest context of a language model that fit into a device's memory.

    No weights are read. Exits with status 1 if the model does not fit.
    """
    try:
        memory_bytes = parse_bytes(memory)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--memory") from None
    log_warnings_to_stderr()
    files = _find(model, store_url)
    shares = _shares_beside(beside or (), memory_bytes, store_url)
    share = min(share, round(1 - sum(shares.values()), 2))
    if share <= 0:
        raise typer.BadParameter(f"these models take all of {memory}", param_hint="--beside")
    found = measure(files, dtype, int(memory_bytes * share))
    context = min(DEFAULT_CONTEXT, found.max_context) if context is None else context
    if context > found.max_context:
        raise typer.BadParameter(f"the model's own context is {found.max_context} tokens", param_hint="--context")
    if as_json:
        figures = {"model": files.label, "dtype": dtype, "memory_bytes": memory_bytes, **_figures(found, context)}
        typer.echo(json.dumps(figures | {"share": share, "shares": shares}, indent=2))
    elif found.fits:
        typer.echo(printable(_report(files.label, found, dtype, context, {"generate": share, **shares}), keep="\n"))
    if not found.fits:
        weights, budget = binary_size(found.weight_bytes), binary_size(found.budget_bytes)
        told = f"its weights take {weights} in {dtype}, {share:.0%} of {binary_size(memory_bytes)} are {budget}"
        typer.echo(printable(f"fovea capacity: {files.label} does not fit: {told}"), err=True)
        raise typer.Exit(1)


def _shares_beside(beside: Sequence[str], memory_bytes: int, store_url: str | None) -> dict[str, float]:
    """Return the share of the memory that each service's models need: their weights as stored, and `WORKING_BYTES`."""
    needed: dict[str, int] = {}
    for one in beside:
        service, _, model = one.partition("=")
        if service not in BESIDE or not model:
            raise typer.BadParameter(f"{one!r} is not SERVICE=MODEL of {', '.join(BESIDE)}", param_hint="--beside")
        sizes = _find(model, store_url).sizes
        weights = sum(size for path, size in sizes.items() if path.endswith((".safetensors", ".bin")))
        needed[service] = needed.get(service, WORKING_BYTES) + weights
    return {service: math.ceil(100 * num_bytes / memory_bytes) / 100 for service, num_bytes in needed.items()}


def _find(model: str, store_url: str | None) -> ModelFiles:
    if Path(model).expanduser().is_dir():
        return folder_files(Path(model).expanduser())
    if "/" in model:
        raise NotFoundInStore(f"there is no folder {model}")
    settings = ServiceSettings(port=0) if store_url is None else ServiceSettings(port=0, store_url=store_url)
    try:
        return stored_files(Store.open(settings.store_url), model)
    except NotFoundInStore as error:
        # Of the starters a store that no service has used holds none.
        starters = {read_description(folder).name: folder for folder in packaged_starters()}
        if model not in starters:
            raise NotFoundInStore(f"{error} (fovea store import SOURCE --name {model} adds one)") from None
        return folder_files(starters[model])


def _figures(found: Capacity, context: int) -> dict[str, int | bool]:
    return {
        "budget_bytes": found.budget_bytes,
        "weight_bytes": found.weight_bytes,
        "token_bytes": found.token_bytes,
        "fits": found.fits,
        "cache_bytes": found.cache_bytes,
        "cache_tokens": found.cache_tokens,
        "context": context,
        "streams": found.streams(context),
        "longest_context": found.longest_context,
        "model_context": found.max_context,
    }


def _report(label: str, found: Capacity, dtype: str, context: int, shares: Mapping[str, float]) -> str:
    rows = {
        "model": f"{label} in {dtype}",
        "weights": f"{binary_size(found.weight_bytes)} of {binary_size(found.budget_bytes)}",
        "cached token": binary_size(found.token_bytes),
        "cache": f"{found.cache_tokens:,} tokens in {binary_size(found.cache_bytes)}",
        "streams": f"{found.streams(context):,} of {context:,} tokens",
        "longest context": f"{found.longest_context:,} tokens (the model's own limit: {found.max_context:,})",
        "vLLM": f"--gpu-memory-utilization {shares['generate']:g} --max-model-len {found.longest_context}",
        "own engine": f"FOVEA_GENERATE_MAX_CACHED_TOKENS={found.cache_tokens}",
        "settings": " ".join(f"FOVEA_{name.upper()}_MEMORY_SHARE={share:g}" for name, share in shares.items()),
    }
    return "\n".join(f"{name:<17}{value}" for name, value in rows.items())
