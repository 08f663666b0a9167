"""Folders in exactly the layouts in which models are published on the Hugging Face Hub, with tiny dimensions.

File lists, names of tensors, kinds of tokenizers, shards and those figures of the configurations that matter for
serving are the published repositories'; weights are random, and chat templates write the published format.
"""

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from services.nn.loading import transformers
from tests.generate.small_tokenizers import SENTENCES

VOCABULARY = 600
WIDTHS = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "bos_token_id": 1, "eos_token_id": 2} | WIDTHS
HALF = {"torch_dtype": "float16", "transformers_version": "4.31.0", "use_cache": True, "tie_word_embeddings": False}
BRAIN = {**HALF, "torch_dtype": "bfloat16", "transformers_version": "4.43.1"}
DOCUMENTS = {".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n", "LICENSE": "Terms.\n"}
TULU_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)
MISTRAL_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ ' ' + message['content'] + eos_token }}"
    "{% endif %}{% endfor %}"
)
CHATML_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud."
    " You are a helpful assistant.<|im_end|>\\n' }}{% endif %}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA3_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
    " + message['content'] + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
LLAMA2_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def vicuna_v1_3(folder: Path) -> None:
    """lmsys/vicuna-7b-v1.3: pickled shards, a SentencePiece model and no fast tokenizer, no chat template."""
    config = LLAMA | HALF | {"max_position_embeddings": 2048, "pad_token_id": 0, "rms_norm_eps": 1e-6}
    _causal_lm(folder, config, shards=2, safe=False)
    _sentencepiece_tokenizer(folder, model_max_length=2048)


def vicuna_v1_5(folder: Path) -> None:
    """lmsys/vicuna-7b-v1.5."""
    config = LLAMA | HALF | {"max_position_embeddings": 4096, "pad_token_id": 0, "rms_norm_eps": 1e-5}
    _causal_lm(folder, config | {"rope_scaling": None}, shards=2, safe=False)
    _sentencepiece_tokenizer(folder, model_max_length=4096)


def vicuna_v1_5_16k(folder: Path) -> None:
    """lmsys/vicuna-7b-v1.5-16k: positions of 4,096 tokens, stretched linearly to 16,384."""
    scaling = {"rope_scaling": {"factor": 4.0, "type": "linear"}, "max_sequence_length": 16384}
    config = LLAMA | HALF | {"max_position_embeddings": 4096, "pad_token_id": 0, "rms_norm_eps": 1e-5} | scaling
    _causal_lm(folder, config, shards=2, safe=False)
    _sentencepiece_tokenizer(folder, model_max_length=16384)


def tulu_2(folder: Path) -> None:
    """allenai/tulu-2-7b: pickled shards, both forms of the tokenizer, a chat template in its configuration."""
    config = LLAMA | HALF | {"max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"}
    _causal_lm(folder, config, shards=3, safe=False)
    _sentencepiece_tokenizer(folder, chat_template=TULU_TEMPLATE)
    _fast_of_sentencepiece(folder)


def mistral_instruct(folder: Path) -> None:
    """mistralai/Mistral-7B-Instruct-v0.2: safetensors and pickles of the same weights."""
    config = LLAMA | BRAIN | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}
    config |= {"num_key_value_heads": 2, "max_position_embeddings": 32768, "rope_theta": 1e6, "rms_norm_eps": 1e-5}
    _causal_lm(folder, config, shards=3, safe=True)
    for number in range(1, 4):
        (folder / f"pytorch_model-0000{number}-of-00003.bin").write_bytes(b"the same weights")
    (folder / "pytorch_model.bin.index.json").write_text("{}")
    (folder / "consolidated.safetensors").write_bytes(b"the same weights")
    _sentencepiece_tokenizer(folder, chat_template=MISTRAL_TEMPLATE)
    _fast_of_sentencepiece(folder)


def qwen2_5_instruct(folder: Path) -> None:
    """Qwen/Qwen2.5-7B-Instruct: byte pairs, two tokens that end an answer, in the generation's configuration."""
    config = BRAIN | WIDTHS | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_key_value_heads": 2}
    config |= {"max_position_embeddings": 32768, "rope_theta": 1e6, "sliding_window": 131072, "rms_norm_eps": 1e-6}
    config |= {"use_sliding_window": False, "max_window_layers": 28}
    ends = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer = byte_level_tokenizer(ends, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    ids = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    generation = {"bos_token_id": ids[0], "eos_token_id": ids[::-1], "pad_token_id": ids[0], "do_sample": True}
    _causal_lm(
        folder, config | {"bos_token_id": ids[0], "eos_token_id": ids[1]}, shards=4, safe=True, generation=generation
    )
    write_tokenizer(folder, tokenizer, CHATML_TEMPLATE, tokenizer_class="Qwen2Tokenizer")
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(vocabulary["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n")


def llama_3_1_instruct(folder: Path) -> None:
    """meta-llama/Llama-3.1-8B-Instruct: rope of llama3, three tokens that end an answer, original weights."""
    rope = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"}
    config = LLAMA | BRAIN | {"rope_scaling": rope | {"original_max_position_embeddings": 8192}, "rope_theta": 5e5}
    config |= {"num_key_value_heads": 2, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5}
    control = (
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
    )
    tokenizer = byte_level_tokenizer(control, opening=control[0], bos_token=control[0], eos_token="<|eot_id|>")
    ends = tokenizer.convert_tokens_to_ids(["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"])
    named = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": ends}
    _causal_lm(folder, config | named, shards=4, safe=True, generation={**named, "do_sample": True})
    write_tokenizer(folder, tokenizer, LLAMA3_TEMPLATE, tokenizer_class="PreTrainedTokenizerFast")
    (folder / "original").mkdir()
    for name in ("consolidated.00.pth", "params.json", "tokenizer.model"):
        (folder / "original" / name).write_bytes(b"{}")
    (folder / "USE_POLICY.md").write_text("Policy.\n")


LANGUAGE_MODELS: Mapping[str, Callable[[Path], None]] = {
    "vicuna-7b-v1.3": vicuna_v1_3,
    "vicuna-7b-v1.5": vicuna_v1_5,
    "vicuna-7b-v1.5-16k": vicuna_v1_5_16k,
    "tulu-2-7b": tulu_2,
    "Mistral-7B-Instruct-v0.2": mistral_instruct,
    "Qwen2.5-7B-Instruct": qwen2_5_instruct,
    "Llama-3.1-8B-Instruct": llama_3_1_instruct,
}


def flan_t5(folder: Path) -> None:
    """google/flan-t5-base: weights of four frameworks, both forms of the tokenizer."""
    _t5(folder, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "n_positions": 512})
    _safe_weights(folder, transformers().T5ForConditionalGeneration.from_pretrained(folder))
    for name in ("flax_model.msgpack", "tf_model.h5"):
        (folder / name).write_bytes(b"the same weights")
    tokenizer = transformers().T5Tokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(folder)


def t5_v1_1(folder: Path) -> None:
    """google/t5-v1_1-small: pickled weights and a SentencePiece model alone."""
    _t5(folder, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_layers": 3, "num_heads": 6})


def step_by_step_student(folder: Path) -> None:
    """checkpoint-10000 of distilling-step-by-step's run.py: the trainer of transformers leaves its own state there."""
    _t5(folder, {"feed_forward_proj": "relu", "tie_word_embeddings": True, "n_positions": 512})
    transformers().T5Tokenizer.from_pretrained(folder).save_pretrained(folder)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        (folder / name).write_bytes(b"pickled objects of the training, which nothing may open")
    (folder / "trainer_state.json").write_text(json.dumps({"best_metric": 0.89, "global_step": 10000}))


T5S: Mapping[str, Callable[[Path], None]] = {
    "flan-t5-base": flan_t5,
    "t5-v1_1-small": t5_v1_1,
    "checkpoint-10000": step_by_step_student,
}


def publish(folder: Path, name: str) -> Path:
    """Make the published folder of that name in `folder`; returns it."""
    made = folder / name
    made.mkdir(parents=True)
    {**LANGUAGE_MODELS, **T5S}[name](made)
    for file, text in DOCUMENTS.items():
        (made / file).write_text(text)
    (made / "README.md").write_text("---\nlicense: llama2\n---\n# A model\n")
    return made


def _causal_lm(
    folder: Path, config: dict[str, Any], *, shards: int, safe: bool, generation: Mapping[str, Any] | None = None
) -> None:
    config = {**config, "vocab_size": VOCABULARY, "hidden_act": "silu", "initializer_range": 0.2}
    (folder / "config.json").write_text(json.dumps(config))
    generation = generation or {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    kinds = transformers()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kinds.AutoModelForCausalLM.from_config(kinds.CONFIG_MAPPING[config["model_type"]].from_dict(config))
    weights = {name: weight.to(getattr(torch, config["torch_dtype"])) for name, weight in model.state_dict().items()}
    write_shards(folder, weights, shards, safe=safe)


def write_shards(folder: Path, weights: Mapping[str, torch.Tensor], count: int, *, safe: bool) -> None:
    from safetensors.torch import save_file

    stem, suffix = ("model", "safetensors") if safe else ("pytorch_model", "bin")
    names = sorted(weights)
    mapped: dict[str, str] = {}
    for number in range(count):
        file = f"{stem}-{number + 1:05d}-of-{count:05d}.{suffix}"
        part = {name: weights[name].contiguous() for name in names[number::count]}
        mapped |= dict.fromkeys(part, file)
        if safe:
            save_file(part, folder / file, metadata={"format": "pt"})
        else:
            torch.save(part, folder / file)
    index = {"metadata": {"total_size": 0}, "weight_map": mapped}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))


@functools.cache
def sentencepiece_model(kind: str) -> bytes:
    """Return a SentencePiece model of some sentences: "bpe" as Llama's, "unigram" as T5's."""
    from sentencepiece import SentencePieceTrainer

    folder = Path(mkdtemp())
    (folder / "text").write_text("\n".join(SENTENCES * 20))
    own: dict[str, Any] = (
        {"byte_fallback": True, "split_digits": True, "normalization_rule_name": "identity", "unk_id": 0, "bos_id": 1}
        | {"eos_id": 2, "pad_id": -1, "remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True}
        if kind == "bpe"
        else {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "hard_vocab_limit": False}
    )
    SentencePieceTrainer.train(
        input=str(folder / "text"),
        model_prefix=str(folder / "tokenizer"),
        model_type=kind,
        vocab_size=440 if kind == "bpe" else 250,
        minloglevel=2,
        **own,
    )
    return (folder / "tokenizer.model").read_bytes()


def _sentencepiece_tokenizer(folder: Path, **settings: Any) -> None:
    (folder / "tokenizer.model").write_bytes(sentencepiece_model("bpe"))
    token = {"__type": "AddedToken", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    config: dict[str, Any] = {name: {**token, "content": text} for name, text in LLAMA2_SPECIAL.items()}
    config |= {"add_bos_token": True, "add_eos_token": False, "legacy": False, "tokenizer_class": "LlamaTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "pad_token": None, **settings}))
    (folder / "special_tokens_map.json").write_text(json.dumps({**LLAMA2_SPECIAL, "pad_token": "<unk>"}))


def _fast_of_sentencepiece(folder: Path) -> None:
    """Write the tokenizer.json that transformers' earlier converters wrote, with Llama's normalisation."""
    from services.generate.imports.language_model import make_fast

    make_fast(folder / "tokenizer.model", LLAMA2_SPECIAL, {}).backend_tokenizer.save(str(folder / "tokenizer.json"))


def byte_level_tokenizer(
    control: tuple[str, ...], opening: str | None = None, words: tuple[str, ...] = (), **special: str
) -> Any:
    """Make a tokenizer with these control tokens, and of these words with a token for each."""
    from tokenizers import AddedToken, Tokenizer, processors

    from tests.generate.small_tokenizers import byte_level

    content = json.loads(byte_level().backend_tokenizer.to_str())
    content |= {"added_tokens": [], "post_processor": None}
    # text alone: the small vocabulary leaves room for the control tokens
    content["model"]["vocab"] = dict(sorted(content["model"]["vocab"].items(), key=lambda entry: entry[1])[:500])
    content["model"]["merges"] = [m for m in content["model"]["merges"] if "".join(m) in content["model"]["vocab"]]
    vocabulary, merges = content["model"]["vocab"], content["model"]["merges"]
    for part in (word[:end] for word in words for end in range(2, len(word) + 1)):
        if part not in vocabulary:
            vocabulary[part] = len(vocabulary)
            merges.append([part[:-1], part[-1]])
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    if opening is not None:
        number = tokenizer.token_to_id(opening)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{opening} $A", special_tokens=[(opening, number)]
        )
    return transformers().PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def write_tokenizer(folder: Path, tokenizer: Any, template: str, **settings: str) -> None:
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template, **settings}))


def _t5(folder: Path, settings: Mapping[str, Any]) -> None:
    config = {
        **{"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 32, "d_ff": 64, "d_kv": 8},
        **{"num_layers": 2, "num_heads": 4, "vocab_size": 400, "decoder_start_token_id": 0, "eos_token_id": 1},
        **{"pad_token_id": 0, "is_encoder_decoder": True, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6},
        **{"relative_attention_num_buckets": 32, "initializer_factor": 1.0, "use_cache": True, **settings},
    }
    (folder / "config.json").write_text(json.dumps(config))
    generation = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps({"_from_model_config": True, **generation}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers().T5ForConditionalGeneration(transformers().T5Config.from_dict(config))
        if not settings["tie_word_embeddings"]:  # transformers ties new models whatever their configuration says
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "spiece.model").write_bytes(sentencepiece_model("unigram"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"extra_ids": 100, "eos_token": "</s>"}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "</s>", "unk_token": "<unk>"}))


def _safe_weights(folder: Path, model: Any) -> None:
    from safetensors.torch import save_model

    save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})
