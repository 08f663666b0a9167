"""Rerankers in exactly the layouts in which they are published on the Hugging Face Hub, with tiny dimensions.

File lists, names of tensors, kinds of tokenizers and figures of the configurations are the published repositories'.
Weights are random, of a size that makes scores differ.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from typer.testing import CliRunner

from services.nn.loading import transformers
from tests.generate.small_tokenizers import SENTENCES
from tests.published_models import CHATML_TEMPLATE, DOCUMENTS
from tests.published_qwen3_vl import write_qwen3_vl_reranker

WIDTHS = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
ONE_LABEL = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}


def ms_marco_minilm(folder: Path) -> None:
    """cross-encoder/ms-marco-MiniLM-L6-v2."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    _train(tokenizer, trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    config: dict[str, Any] = {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "hidden_act": "gelu",
    }
    config |= {"max_position_embeddings": 512, "pad_token_id": 0, "type_vocab_size": 2, "layer_norm_eps": 1e-12}
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.0.1"}
    weights = _classifier(folder, config, tokenizer)
    weights["bert.embeddings.position_ids"] = torch.arange(512)[None]  # as older versions of transformers saved it
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "flax_model.msgpack").write_bytes(b"the same weights")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"the same weights")
    settings = {"do_lower_case": True, "model_max_length": 512, "tokenizer_class": "BertTokenizer"}
    _write_tokenizer(folder, tokenizer, {**names, "mask_token": "[MASK]"}, settings)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in vocabulary))


def bge_reranker(folder: Path) -> None:
    """BAAI/bge-reranker-base; bge-reranker-v2-m3 has the same files, and 8,194 positions."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("\n", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    _train(
        tokenizer,
        trainers.UnigramTrainer(vocab_size=250, special_tokens=special, unk_token="<unk>", show_progress=False),
    )
    tokenizer.add_special_tokens(["<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>"}
    config: dict[str, Any] = {"architectures": ["XLMRobertaForSequenceClassification"], "model_type": "xlm-roberta"}
    config |= {"max_position_embeddings": 514, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    config |= {"type_vocab_size": 1, "layer_norm_eps": 1e-05, "hidden_act": "gelu", "torch_dtype": "float32"}
    save_file(_classifier(folder, config, tokenizer), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "sentencepiece.bpe.model").write_bytes(b"the same vocabulary")
    settings = {"model_max_length": 512, "tokenizer_class": "XLMRobertaTokenizer"}
    _write_tokenizer(folder, tokenizer, {**names, "unk_token": "<unk>", "mask_token": "<mask>"}, settings)


def gte_reranker_modernbert(folder: Path) -> None:
    """Alibaba-NLP/gte-reranker-modernbert-base: float16, mean pooling, layers that see a window."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    _train(tokenizer, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    config: dict[str, Any] = {"architectures": ["ModernBertForSequenceClassification"], "model_type": "modernbert"}
    config |= {"max_position_embeddings": 8192, "pad_token_id": 3, "bos_token_id": 1, "cls_token_id": 1}
    config |= {"eos_token_id": 2, "sep_token_id": 2, "classifier_pooling": "mean", "classifier_activation": "gelu"}
    config |= {"global_attn_every_n_layers": 3, "local_attention": 128, "torch_dtype": "float16"}
    config |= {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "reference_compile": False}
    weights = {name: weight.half() for name, weight in _classifier(folder, config, tokenizer).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    settings = {"model_max_length": 8192, "tokenizer_class": "PreTrainedTokenizerFast"}
    inputs = {"model_input_names": ["input_ids", "attention_mask"]}
    _write_tokenizer(folder, tokenizer, {**names, "mask_token": "[MASK]"}, settings | inputs)


def qwen3_reranker(folder: Path) -> None:
    """Qwen/Qwen3-Reranker-0.6B: bfloat16, tied embeddings, the configuration and the chat template of any Qwen3."""
    config: dict[str, Any] = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False}
    _qwen(folder, config | {"head_dim": 16, "max_position_embeddings": 40960, "max_window_layers": 28})


def mxbai_rerank(folder: Path) -> None:
    """mixedbread-ai/mxbai-rerank-base-v2: the configuration and the chat template of any Qwen2.5."""
    config: dict[str, Any] = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_window_layers": 24}
    _qwen(folder, config | {"max_position_embeddings": 32768})


def _qwen(folder: Path, config: dict[str, Any]) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _train(tokenizer, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["<think>", "</think>"])
    end, end_of_turn = (tokenizer.token_to_id(token) for token in ("<|endoftext|>", "<|im_end|>"))
    config |= {"hidden_act": "silu", "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000}
    config |= {"rope_scaling": None, "sliding_window": None, "use_sliding_window": False, "use_cache": True}
    config |= {"bos_token_id": end, "eos_token_id": end_of_turn, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
    weights = _weights(folder, config, tokenizer, "AutoModelForCausalLM")
    del weights["lm_head.weight"]
    save_file(
        {name: weight.bfloat16() for name, weight in weights.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    generation = {"bos_token_id": end, "eos_token_id": [end_of_turn, end], "pad_token_id": end, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    settings = {"model_max_length": 131072, "tokenizer_class": "Qwen2Tokenizer", "chat_template": CHATML_TEMPLATE}
    _write_tokenizer(folder, tokenizer, names, settings)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(vocabulary["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in vocabulary["merges"]))


CROSS_ENCODERS: Mapping[str, Callable[[Path], None]] = {
    "ms-marco-MiniLM-L6-v2": ms_marco_minilm,
    "bge-reranker-base": bge_reranker,
    "gte-reranker-modernbert-base": gte_reranker_modernbert,
}
QWEN3_RERANKER = "Qwen3-Reranker-0.6B"
QWEN3_VL_RERANKER = "Qwen3-VL-Reranker-2B"
MXBAI_RERANK = "mxbai-rerank-base-v2"
RERANKERS = {
    **CROSS_ENCODERS,
    QWEN3_RERANKER: qwen3_reranker,
    QWEN3_VL_RERANKER: write_qwen3_vl_reranker,
    MXBAI_RERANK: mxbai_rerank,
}


def publish_reranker(folder: Path, name: str) -> Path:
    """Make the published folder of that name in `folder`; returns it."""
    made = folder / name
    made.mkdir(parents=True)
    RERANKERS[name](made)
    (made / ".gitattributes").write_text(DOCUMENTS[".gitattributes"])
    (made / "README.md").write_text("---\nlicense: apache-2.0\npipeline_tag: text-ranking\n---\n# A reranker\n")
    return made


def import_rerankers(folder: Path, store_url: str) -> tuple[str, ...]:
    """Run `fovea store import` for all of them, from folders in `folder / "hub"`; returns their names in the store."""
    from services.cli.store import app

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder / "home"))
        patch.setenv("FOVEA_STORE_URL", store_url)
        for name in RERANKERS:
            result = CliRunner().invoke(app, ["import", str(publish_reranker(folder / "hub", name))])
            assert result.exit_code == 0, result.output
    return tuple(map(str.lower, RERANKERS))


def _train(tokenizer: Tokenizer, trainer: Any) -> None:
    tokenizer.train_from_iterator((*SENTENCES, *("yes", "no") * 200), trainer)


def _classifier(folder: Path, config: dict[str, Any], tokenizer: Tokenizer) -> dict[str, torch.Tensor]:
    return _weights(folder, {**ONE_LABEL, **config}, tokenizer, "AutoModelForSequenceClassification")


def _weights(folder: Path, config: dict[str, Any], tokenizer: Tokenizer, kind: str) -> dict[str, torch.Tensor]:
    """Write `config.json`; returns the weights."""
    config = {**WIDTHS, "initializer_range": 0.3, **config, "vocab_size": tokenizer.get_vocab_size()}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    kinds = transformers()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(kinds, kind).from_config(kinds.CONFIG_MAPPING[config["model_type"]].from_dict(config))
    return {name: weight.contiguous().clone() for name, weight in model.state_dict().items()}


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, names: Mapping[str, str], settings: Mapping[str, Any]) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "special_tokens_map.json").write_text(json.dumps(names))
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, **settings}))
