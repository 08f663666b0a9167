"""Import of causal language models in transformers' layout: what is taken, and what is made where it is missing.

Conversation templates of families that publish none write what FastChat's `get_prompt` writes, to the character, after
the tokenizer's `<s>`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, TemplateSyntaxError
from pydantic import JsonValue

from services.core.printable import first_line
from services.core.refusals import Refused
from services.generate.capacity import context_length
from services.generate.model.language_model import ARCHITECTURES, check_config
from services.generate.model.profile import PROFILE_FILE, CalibrationProfile, paper_profile, write_profile
from services.jobs.imports.plan import Plan, left_files
from services.jobs.imports.source import Source, fetch_small, read_model_config, read_object
from services.jobs.imports.weights import find_weights, stored_weights
from services.nn.loading import quiet_loading, transformers
from services.nn.model_configs import StoredWeights, faults_of, model_config

# By the part of a model's name that tells its family; Vicuna v0 had another format.
FAMILIES: Mapping[str, str] = {"vicuna": "vicuna_v1.1", "tulu": "tulu"}
# Numbers of weights of the chat models for which the paper's settings hold; those that it measured have 6.7 billion.
PAPER_SIZE = range(6 * 10**9, 9 * 10**9)
_GENERATION = re.compile(r"{%-? *(end)?generation *-?%}")
_OTHER_FORMATS = ("vicuna-7b-v0", "vicuna-13b-v0", "vicuna-7b-delta-v0", "vicuna-13b-delta-v0")


def family_of(name: str) -> str | None:
    """Return the name of the template of a model's family, None for models of no known one."""
    lowered = name.lower()
    if lowered.startswith(_OTHER_FORMATS):
        return None
    return next((template for part, template in FAMILIES.items() if part in lowered), None)


def template_of(family: str) -> str:
    """Return a family's template as Jinja text. Raises Refused for an unknown one."""
    if family not in FAMILIES.values():
        known = ", ".join(FAMILIES.values())
        raise Refused(f"--chat-template: {family!r} is no file and no conversation template of a family ({known})")
    return (files("services.generate.imports") / "chat_templates" / f"{family}.jinja").read_text()


KIND = "causal-lm"
CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
SENTENCEPIECE, NO_TEMPLATE = "tokenizer.model", "none"
PUBLISHED = "as published: last half of the layers, t = 5e-5, exact (a pass for each document); see fovea calibrate"
TEMPLATE, OLD_TEMPLATE = "chat_template.jinja", "chat_template.json"
BESIDE_WEIGHTS = (CONFIG, "generation_config.json", PROFILE_FILE)
SPECIAL_TOKENS, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"
BESIDE_TOKENIZER = (TOKENIZER_CONFIG, SPECIAL_TOKENS, ADDED_TOKENS)
# Of byte-pair tokenizers; without a tokenizer.json they lack how text is split.
BYTE_PAIRS = ("vocab.json", "merges.txt")


@dataclass(frozen=True)
class LanguageModelImport:
    """An import of one source; `chat_template` is a file or the name of a family's template, None for the source's."""

    source: Source
    chat_template: str | None = None

    @classmethod
    def recognises(cls, config: Mapping[str, Any]) -> bool:
        """Whether a `config.json` is of a causal language model that `generate` serves, or of one nearly."""
        named = config.get("architectures") or ()
        return config.get("model_type") in ARCHITECTURES or any(str(one).endswith("ForCausalLM") for one in named)

    def plan(self) -> Plan:
        """Plan the import without reading weights. Raises Refused for what would not be served rightly."""
        config = self._config()
        weights = find_weights(self.source)
        present = self.source.files
        taken = [path for path in BESIDE_WEIGHTS if path in present]
        taken += weights.taken_index
        beside = self._tokenizer_files()
        has_tokenizer = TOKENIZER in present
        read = () if has_tokenizer else tuple(path for path in beside if path in present)
        made = {} if has_tokenizer else {TOKENIZER: SENTENCEPIECE}
        template, told = self._template()
        if template is not None:
            made[TEMPLATE] = told
        own = () if template is not None else (TEMPLATE, OLD_TEMPLATE)
        taken += [path for path in (*(beside if has_tokenizer else ()), *own) if path in present]
        reasons = dict.fromkeys((SENTENCEPIECE, *BYTE_PAIRS), f"{TOKENIZER} says the same")
        left = left_files(self.source, weights, {*taken, *read}, reasons)
        size = sum(present[file] for file in weights.files)
        profile, calibrated = self._profile()
        if profile is not None:
            made[PROFILE_FILE] = "the settings published for 7B chat models"
        facts = {**_facts(config, stored_weights(self.source)), "weight_bytes": size, "chat_template": told}
        facts["calibration"] = calibrated
        return Plan(KIND, ("generate",), tuple(taken), weights, read, made, left, facts)

    def build(self, folder: Path) -> None:
        """Make in the folder, which holds the files that are taken, what the source lacks. Raises Refused."""
        if TOKENIZER not in self.source.files:
            self._make_tokenizer(folder)
        template, _ = self._template()
        if template is not None:
            (folder / TEMPLATE).write_text(template)
            _drop_template(folder / TOKENIZER_CONFIG)
        if (profile := self._profile()[0]) is not None:
            write_profile(profile, folder)

    def _profile(self) -> tuple[CalibrationProfile | None, str]:
        """Return the paper's profile for a chat model of the paper's size without its own, and what is told of it."""
        if PROFILE_FILE in self.source.files:
            return None, "the source's own"
        config = self._config()
        size = _facts(config, stored_weights(self.source))["num_parameters"]
        if size not in PAPER_SIZE or self._template()[1] == NO_TEMPLATE:
            return None, "none; fovea calibrate chooses one"
        return paper_profile(config.num_hidden_layers), PUBLISHED

    def _config(self) -> Any:
        raw = read_model_config(self.source)
        if raw.get("model_type") not in ARCHITECTURES:
            kind = raw.get("model_type")
            raise Refused(f"{CONFIG}: the architecture {kind!r} is not served; served are {', '.join(ARCHITECTURES)}")
        if (quantised := raw.get("quantization_config")) is not None:
            how = quantised.get("quant_method") if isinstance(quantised, dict) else None
            told = f"quantised weights ({how})" if how else "quantised weights"
            raise Refused(f"{CONFIG}: {told} are not served; import the model that they were made from")
        config = model_config(raw, stored_weights(self.source))
        with faults_of(CONFIG):
            check_config(config)
        return config

    def _tokenizer_files(self) -> tuple[str, ...]:
        """Name the files of the tokenizer: those that are served, or else those that one is made of. Raises Refused."""
        present = self.source.files
        if TOKENIZER in present:
            return (TOKENIZER, *BESIDE_TOKENIZER)
        if SENTENCEPIECE in present:
            return (SENTENCEPIECE, *BESIDE_TOKENIZER)
        if all(path in present for path in BYTE_PAIRS):
            raise Refused(
                f"{self.source.uri} has {BYTE_PAIRS[0]} and {BYTE_PAIRS[1]}, but no {TOKENIZER}: load and save its "
                "tokenizer once with transformers, which writes it"
            )
        raise Refused(f"{self.source.uri} has no tokenizer: neither {TOKENIZER} nor {SENTENCEPIECE}")

    def _template(self) -> tuple[str | None, str]:
        """Return the template to be written, None if the source's own stays or there is none, and where it is from."""
        if self.chat_template is not None:
            file = Path(self.chat_template)
            if file.is_file():
                text = file.read_text()
                check_template(text, f"--chat-template: {file.name}")
                return text, f"the file {file.name}"
            return template_of(self.chat_template), f"the family's: {self.chat_template}"
        if self._check_own_templates():
            return None, "the source's own"
        family = family_of(self.source.name)
        return (None, NO_TEMPLATE) if family is None else (template_of(family), f"the family's: {family}")

    def _check_own_templates(self) -> bool:
        """Whether the source has templates of its own. Raises Refused, with file and line, for one that is none."""
        found: dict[str, Any] = {}
        for file in (TOKENIZER_CONFIG, OLD_TEMPLATE):
            if (given := read_object(self.source, file).get("chat_template")) is not None:
                found[file] = given
        if TEMPLATE in self.source.files:
            found[TEMPLATE] = fetch_small(self.source, TEMPLATE).read_text()
        for file, given in found.items():
            named = given if isinstance(given, list) else [{"template": given}]
            for one in named:
                text = one.get("template") if isinstance(one, dict) else one
                check_template(text, file)
        return bool(found)

    def _make_tokenizer(self, folder: Path) -> None:
        given = {**read_object(self.source, SPECIAL_TOKENS), **read_object(self.source, TOKENIZER_CONFIG)}
        added = read_object(self.source, ADDED_TOKENS)
        make_fast(self.source.fetch(SENTENCEPIECE), given, added).save_pretrained(folder)


def check_template(text: Any, where: str) -> None:
    """Raises Refused for what is no chat template, with its line."""
    cure = "correct it, or give another by --chat-template"
    if not isinstance(text, str):
        raise Refused(f"{where}: chat_template is {text!r}, and must be text: {cure}")
    try:
        # what transformers' own extension reads beside jinja's
        Environment(extensions=["jinja2.ext.loopcontrols"]).parse(_GENERATION.sub("", text))
    except TemplateSyntaxError as error:
        raise Refused(f"{where}, line {error.lineno}: {error.message}; {cure}") from None


def _facts(config: Any, stored: StoredWeights) -> dict[str, JsonValue]:
    """Describe a model by its configuration: nothing of its weights is read."""
    with faults_of(CONFIG, config.to_dict()), stored.bound(), torch.device("meta"), quiet_loading():
        model = transformers().AutoModelForCausalLM.from_config(config)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dtype = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    kept = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim
    return {
        "architecture": config.model_type,
        "num_parameters": sum(weight.numel() for weight in model.parameters()),
        "dtype": str(dtype).removeprefix("torch."),
        "bytes_per_token": kept * dtype.itemsize,
        "context_length": context_length(config.to_dict()),
    }


def _drop_template(path: Path) -> None:
    """Remove the template of a tokenizer's configuration, so that the one beside it holds."""
    if path.is_file():
        config = json.loads(path.read_bytes())
        if config.pop("chat_template", None) is not None:
            path.unlink()  # it may be a link to the source's file
            path.write_text(json.dumps(config, indent=2) + "\n")


# U+2581, which SentencePiece writes for a space.
SPACE = "▁"
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def make_fast(model: Path, config: Mapping[str, Any], added: Mapping[str, int]) -> Any:
    """Make a PreTrainedTokenizerFast of a SentencePiece BPE model.

    `config` is the checkpoint's `tokenizer_config.json`: its special tokens, chat template and whether texts begin with
    `<s>`. `added` are further tokens with their ids. Raises Refused for a damaged model, for one of another kind than
    BPE with bytes, and for added tokens whose ids do not follow the model's.
    """
    pieces = _pieces(model)
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    unknown = _content(config.get("unk_token")) or "<unk>"
    tokenizer = Tokenizer(
        models.BPE(vocab=ids, merges=_merges(pieces, ids), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = {name: token for name in SPECIAL if (token := _content(config.get(name)))}
    control = dict.fromkeys(token for token in (unknown, *special.values()) if token in ids)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    for token, number in sorted(added.items(), key=lambda entry: entry[1]):
        is_special = token in special.values()
        add = tokenizer.add_special_tokens if is_special else tokenizer.add_tokens
        add([AddedToken(token, special=is_special, normalized=False)])
        if tokenizer.token_to_id(token) != number:
            raise Refused(
                f"the added token {token!r} has the id {number}, where {tokenizer.token_to_id(token)} follows"
            )
    bos = special.get("bos_token", "<s>")
    if config.get("add_bos_token", True) and bos in ids:
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, ids[bos])])
    kept = {name: config[name] for name in ("chat_template", "model_max_length") if config.get(name) is not None}
    return transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special, **kept
    )


def _pieces(model: Path) -> list[tuple[str, float]]:
    from sentencepiece import SentencePieceProcessor

    try:
        processor = SentencePieceProcessor(model_file=str(model))
    except (RuntimeError, OSError) as error:
        raise Refused(f"{model.name} is not a SentencePiece model: {first_line(error)}") from None
    numbers = range(processor.get_piece_size())
    if not any(processor.is_byte(number) for number in numbers):
        raise Refused(f"{model.name} has no pieces for bytes: only BPE models with bytes, as Llama's, are converted")
    return [(processor.id_to_piece(number), processor.get_score(number)) for number in numbers]


def _merges(pieces: Sequence[tuple[str, float]], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """List the pairs of pieces that make a piece, those of better pieces first."""
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, score in pieces:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                merges.append((-score, ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(merges)]


def _content(token: Any) -> str | None:
    """Return the text of a token, which configurations write as text or with its properties."""
    return token.get("content") if isinstance(token, Mapping) else token
