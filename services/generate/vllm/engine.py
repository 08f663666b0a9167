"""A checkpoint of the store as vLLM serves it: its tokenizer, configuration and profile here, its weights there."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.core.errors import FoveaError
from services.core.store.errors import StoreUnavailable
from services.generate.generation.answer_text import Vocabulary
from services.generate.generation.generation import Progress, ReorderedGeneration
from services.generate.generation.input_processor import InputProcessor, Item
from services.generate.generation.ranking import Ranking
from services.generate.model.language_model import ModelConfig, describe_model, reference_token_ids
from services.generate.model.profile import OFF, CalibrationProfile, read_profile
from services.generate.prompts.ranking import RankingJob
from services.generate.prompts.templates import Piece, tokenise
from services.generate.vllm.answers import VllmAnswers, VllmCalibrator, VllmRankings
from services.generate.vllm.client import ServedModel, VllmAddress, VllmClient, one_token
from services.nn.broken_model import BrokenModel
from services.nn.loading import transformers
from services.nn.model_configs import UNKNOWN_WEIGHTS, read_config
from services.nn.reference_outputs import TOLERANCES, check_outputs, read_reference


class NotServed(StoreUnavailable):
    """VLLM does not serve this checkpoint now; it is asked again."""


class VllmEngine:
    """Answers for one checkpoint through the server at `address`.

    `trouble` says why it cannot answer now, None if it can; `VllmStepper` keeps it up to date.
    """

    def __init__(
        self, directory: Path, address: VllmAddress, served: ServedModel, config: ModelConfig, tokenizer: Any
    ) -> None:
        """Raises BadProfile for a profile with layers that the model does not have."""
        self.address = address
        self.model = address.model
        self.trouble: str | None = None
        self._directory = directory
        self.config = config
        context_length = min(config.max_model_len, served.max_model_len)
        self.processor = InputProcessor(tokenizer, config, _profile_of(directory, config), context_length)

    @classmethod
    def load(cls, directory: Path, address: VllmAddress) -> "VllmEngine":
        """Read a checkpoint's folder but its weights, and compare it with what vLLM serves.

        Raises NotServed where vLLM does not answer or serves another model, BadProfile and BrokenModel, and ValueError
        or OSError for a folder that cannot be read.
        """
        return asyncio.run(cls._load(directory, address))

    @classmethod
    async def _load(cls, directory: Path, address: VllmAddress) -> "VllmEngine":
        tokenizer, config = read_model(directory)
        async with VllmClient.opened(address) as client:
            try:
                served = await client.describe()
                engine = cls(directory, address, served, config, tokenizer)
                await engine._compare(client, served)
            except FoveaError as error:
                raise NotServed(error.message) from error
        return engine

    async def check(self, client: VllmClient) -> None:
        """Compare vLLM's model with the checkpoint: its name, its shape and, if the checkpoint has them, its outputs.

        Raises NotServed if they differ, and what `VllmClient` raises.
        """
        await self._compare(client, await client.describe())

    async def _compare(self, client: VllmClient, served: ServedModel) -> None:
        bases = await client.names()
        if self.model not in bases:
            raise NotServed(f"vLLM serves {', '.join(bases)}: start it with --served-model-name {self.model}")
        check_served(served, self.config, self.model)
        reference = read_reference(self._directory)
        if reference is None:
            return
        computes_in = served.dtype if served.quantization is None else "int8"
        tolerance = max(TOLERANCES[reference.dtype], TOLERANCES.get(computes_in, TOLERANCES["int8"]))
        errors = []
        # the store may have an adapter merged into its base, or only the base
        for name in filter(None, (self.model, bases[self.model])):
            found = [await self._reference_output(client, name, str(text)) for text in reference.inputs]
            try:
                return check_outputs(reference, found, tolerance)
            except BrokenModel as error:
                errors.append(error)
        raise NotServed(f"vLLM serves other weights as {self.model}: {errors[-1]}") from errors[-1]

    def warm_up(self) -> None:
        """Do nothing: vLLM warms itself up."""

    def self_check(self) -> None:
        """Do nothing: `load` has compared it with what vLLM serves."""

    def answering(self, client: VllmClient) -> "VllmAnswering":
        """Return what answers over the connections of a client."""
        return VllmAnswering(client, self.processor, self.config)

    async def _reference_output(self, client: VllmClient, model: str, text: str) -> list[float]:
        """Return what `next_logits` returns: log-probabilities minus their mean are logits minus theirs."""
        processor = self.processor
        input_ids = tokenise(processor.tokenizer, [Piece(text)]).input_ids[: processor.context_length - 1]
        token_ids = reference_token_ids(processor.vocab_size)
        asked = {"model": model, **one_token(input_ids)}
        top = dict((await client.complete(asked, token_ids=token_ids)).choices[0].top)
        logprobs = [top[token_id] for token_id in token_ids]
        mean = sum(logprobs) / len(logprobs)
        return [logprob - mean for logprob in logprobs]


class VllmAnswering:
    """Answers and ranks with one checkpoint over open connections."""

    def __init__(self, client: VllmClient, processor: InputProcessor, config: ModelConfig) -> None:
        self._processor = processor
        self.calibrator = VllmCalibrator(client, processor.tokenizer)
        vocabulary = Vocabulary(processor.tokenizer)
        self.answers = VllmAnswers(client, self.calibrator, vocabulary, config.eos_token_ids)
        self._rankings = VllmRankings(client, self.calibrator, processor.profile)

    async def run(self, item: Item, tenant: str) -> AsyncGenerator[Progress | Ranking, None]:
        """Yield the steps of a generation, or the one ranking of a job. Raises TooLarge, and as `VllmClient` does."""
        if isinstance(item, RankingJob):
            yield await self._rankings.rank(item, tenant=tenant)
        elif isinstance(item, ReorderedGeneration):
            tokenizer, limit = self._processor.tokenizer, self._processor.context_length
            order = await self._rankings.order(item, tokenizer, limit)
            async for progress in self.answers.answer(item.in_order(order), order):
                yield replace(progress, generation=item)
        else:
            async for progress in self.answers.answer(item):
                yield progress


def read_model(directory: Path) -> tuple[Any, ModelConfig]:
    """Read the tokenizer and the configuration of a Hugging Face folder, without its weights. Raises OSError."""
    library, options = transformers(), {"local_files_only": True, "trust_remote_code": False}
    config = read_config(directory, UNKNOWN_WEIGHTS)
    if (directory / "generation_config.json").exists():
        generation_config = library.GenerationConfig.from_pretrained(directory, local_files_only=True)
    else:
        generation_config = library.GenerationConfig.from_model_config(config)
    tokenizer = library.AutoTokenizer.from_pretrained(directory, **options)
    return tokenizer, describe_model(config, generation_config, tokenizer.eos_token_id, num_bytes=2)


def check_served(served: ServedModel, config: ModelConfig, model: str) -> None:
    """Raises NotServed if vLLM cannot calibrate its model, or if that has another shape than the checkpoint."""
    if served.refusal is not None:
        raise NotServed(f"vLLM for {model}: {served.refusal}")
    shapes = (
        ("layers", served.num_layers, config.num_layers),
        ("heads", served.num_heads, config.num_heads),
        ("tokens in its vocabulary", served.vocab_size, config.vocab_size),
    )
    for what, found, expected in shapes:
        if found != expected:
            raise NotServed(f"vLLM serves as {model} a model with {found} {what}, and the checkpoint has {expected}")


def _profile_of(directory: Path, config: ModelConfig) -> CalibrationProfile:
    profile = read_profile(directory) or OFF
    refusal = profile.answerability
    is_unknown = refusal is not None and refusal.token_id >= config.vocab_size
    return profile.model_copy(update={"answerability": None}) if is_unknown else profile
