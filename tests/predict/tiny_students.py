"""Tiny T5s of both kinds with random weights, and the same as checkpoint folders with a tokenizer and a task."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from services.nn.loading import transformers

transformers()  # as the services import it, without accelerate

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers  # noqa: E402
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration  # noqa: E402

Kind = Literal["t5", "v1.1"]
KINDS: tuple[Kind, ...] = ("t5", "v1.1")
VOCAB_SIZE = 400
PAD, EOS, UNKNOWN = 0, 1, 2
# what the tokenizer's merges are learnt from
TEXT = """predict: explain: A man is walking a dog in the park. A person walks outside. entailment neutral contradiction
Where would you keep the milk? Answer Choices: (a) fridge (b) garden (c) school Each box has 5 apples. How many apples
are there in 4 boxes? ( 5.0 * 4.0 ) because there are that many in each of them"""


def tiny_t5(kind: Kind = "t5", *, seed: int = 0, spread: float = 3.0, **settings: Any) -> Any:
    """T5 1.0 has a tied, scaled head and ReLU; v1.1 and flan have a head of their own and a gated GELU.

    Relative positions are few and near, so that short inputs see all their buckets. Next tokens are the farther from
    uniform the greater `spread` is.
    """
    config = T5Config(
        **{
            "vocab_size": VOCAB_SIZE,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 3,
            "num_heads": 4,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 20,
            "feed_forward_proj": "relu" if kind == "t5" else "gated-gelu",
            "tie_word_embeddings": kind == "t5",
            "decoder_start_token_id": PAD,
            "pad_token_id": PAD,
            "eos_token_id": EOS,
            **settings,
        }
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = T5ForConditionalGeneration(config)
        if kind != "t5":
            model.lm_head.weight = torch.nn.Parameter(torch.randn(config.vocab_size, config.d_model))
        for name, parameter in model.named_parameters():
            if "layer_norm" in name:
                torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
            if "relative_attention_bias" in name:
                torch.nn.init.normal_(parameter, std=1.0)
            if "EncDecAttention.o" in name:
                parameter.data.mul_(4.0)  # answers depend on their inputs
        # of either sign, else a tied head would repeat what came last
        torch.nn.init.normal_(model.decoder.final_layer_norm.weight, std=spread)
        model.lm_head.weight.data[EOS] *= 3.0  # answers end at different steps
    torch.nn.Module.eval(model)
    torch.nn.Module.requires_grad_(model, False)
    return model


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer with T5's special tokens and the end of sequence after every text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<pad>", "</s>", "<unk>", "<extra_id_0>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", EOS)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )


def save_student(directory: Path, task: dict[str, Any] | None = None, kind: Kind = "t5", **settings: Any) -> Path:
    """The model of `tiny_t5` with `tiny_tokenizer`, and `task` as its task.json; returns the directory."""
    tiny_t5(kind, **settings).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    if task is not None:
        (directory / "task.json").write_text(json.dumps(task))
    return directory


def constrained_logprobs(model: Any, input_ids: Sequence[int], candidates: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return each candidate's log-probability by transformers, over only those next tokens that lead to a candidate."""
    sums = []
    for ids in candidates:
        logits = model(input_ids=torch.tensor([list(input_ids)]), labels=torch.tensor([list(ids)])).logits[0]
        total = torch.zeros(())
        for place, token in enumerate(ids):
            beginning = list(ids[:place])
            allowed = sorted({other[place] for other in candidates if list(other[:place]) == beginning})
            total = total + logits[place, allowed].log_softmax(-1)[allowed.index(token)]
        sums.append(total)
    return torch.stack(sums)
