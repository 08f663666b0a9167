"""A small classifier of sentences, and the loss that it learns from: which sentences are spoilt, and which words.

Shapes: B sentences, T tokens.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Self

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn

from services.nn.loading import quiet_loading, transformers
from services.score.negatives.annotation import Annotation
from starters.curate.corruptions import Bias, Corruptions

PAD, UNKNOWN, CLS, SEP = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
PAD_ID, UNKNOWN_ID, CLS_ID, SEP_ID = range(4)
MAX_TOKENS = 64
# Sentences of similar lengths make a batch: they are drawn from a window of this many batches.
WINDOW = 8
# Weight of the loss over words beside that over sentences.
WORD_WEIGHT = 2.0


@dataclass(frozen=True)
class Shape:
    """The numbers of a network that is still below 5 MB in float16."""

    vocabulary: int = 8_000
    width: int = 144
    num_layers: int = 3
    num_heads: int = 4


def build_tokenizer(sentences: Iterable[str], vocabulary: int) -> Tokenizer:
    """Learn pieces of lower-case words, with `[CLS]` before a sentence and `[SEP]` after it, as BERT has them.

    They are merged pairs of bytes: word pieces, as `tokenizers` learns them, are not the same each time.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}", special_tokens=[(CLS, CLS_ID), (SEP, SEP_ID)]
    )
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


def build_classifier(vocabulary: int, shape: Shape, seed: int) -> Any:
    """Make a DistilBERT with two labels, of which LABEL_1 is a sentence as people write it."""
    package = transformers()
    config = package.DistilBertConfig(
        vocab_size=vocabulary,
        dim=shape.width,
        hidden_dim=4 * shape.width,
        n_layers=shape.num_layers,
        n_heads=shape.num_heads,
        max_position_embeddings=MAX_TOKENS,
        pad_token_id=PAD_ID,
        dropout=0.1,
        attention_dropout=0.0,
        seq_classif_dropout=0.1,
        num_labels=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return package.DistilBertForSequenceClassification(config)


def save_classifier(classifier: Any, tokenizer: Tokenizer, directory: Path) -> None:
    """Write a folder in transformers' form, with weights in float16."""
    directory.mkdir(parents=True, exist_ok=True)
    names = {"unk_token": UNKNOWN, "pad_token": PAD, "cls_token": CLS, "sep_token": SEP}
    fast = transformers().PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=MAX_TOKENS, **names)
    fast.save_pretrained(directory)
    with quiet_loading():
        classifier.to(torch.float16).save_pretrained(directory)
    classifier.float()


@dataclass(frozen=True)
class SentenceBatch:
    """Sentences (B, T), which of their tokens are words, whether each is true, (B,), and which tokens are wrong."""

    input_ids: Tensor
    attention_mask: Tensor
    is_true: Tensor
    is_wrong: Tensor

    def to(self, device: torch.device) -> Self:
        moved = (getattr(self, name).to(device) for name in ("input_ids", "attention_mask", "is_true", "is_wrong"))
        return type(self)(*moved)


class BlindLoss(nn.Module):
    """Cross-entropy of a sentence's label, and of each token's: whether it is one that a change put there.

    The head for tokens is not part of the checkpoint; it tells where a sentence is wrong, of which one label in fifteen
    words says little.
    """

    def __init__(self, classifier: Any) -> None:
        super().__init__()
        self.classifier = classifier
        self.word_head = nn.Linear(classifier.config.dim, 1)

    def forward(self, batch: SentenceBatch) -> Tensor:
        """Compute the loss of a batch: ()."""
        found = self.classifier(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, output_hidden_states=True
        )
        of_sentences = F.cross_entropy(found.logits, batch.is_true)
        of_words = F.binary_cross_entropy_with_logits(
            self.word_head(found.hidden_states[-1])[..., 0], batch.is_wrong, weight=batch.attention_mask.float()
        )
        return of_sentences + WORD_WEIGHT * of_words


class Batches:
    """Batch t of true sentences and their corruptions, which depends on t and the seed alone."""

    def __init__(
        self,
        annotations: Sequence[Annotation],
        corruptions: Corruptions,
        tokenizer: Tokenizer,
        *,
        bias: Bias,
        num_sentences: int,
        seed: int,
    ) -> None:
        self._annotations = sorted(annotations, key=lambda annotation: len(annotation.words))
        self._corruptions, self._tokenizer = corruptions, tokenizer
        self._bias, self._num_sentences, self._seed = bias, num_sentences, seed

    def __call__(self, step: int) -> SentenceBatch:
        """Make a batch of `num_sentences` sentences, half of them true."""
        generator = Random(f"{self._bias} {self._seed} {step}")
        num_pairs = self._num_sentences // 2
        window = self._annotations
        if len(window) > WINDOW * num_pairs:
            start = generator.randrange(len(window) - WINDOW * num_pairs)
            window = window[start : start + WINDOW * num_pairs]
        rows: list[tuple[list[int], list[float], bool]] = []
        while len(rows) < 2 * num_pairs:
            annotation = generator.choice(window)
            false = self._corruptions.make(annotation, self._bias, generator)
            if false is None:
                continue
            right, wrong = (self._tokenizer.encode(text).ids for text in (annotation.replaced({}), false))
            rows.append((right, [0.0] * len(right), True))
            rows.append((wrong, _wrong_tokens(right, wrong), False))
        return _padded(rows)


def _wrong_tokens(right: Sequence[int], wrong: Sequence[int]) -> list[float]:
    """Mark the tokens that differ; of texts of other lengths, those between their common beginning and end."""
    if len(right) == len(wrong):
        return [float(one != other) for one, other in zip(right, wrong, strict=True)]
    shortest = min(len(right), len(wrong))
    before = next((place for place in range(shortest) if right[place] != wrong[place]), shortest)
    after = next((place for place in range(shortest - before) if right[-1 - place] != wrong[-1 - place]), 0)
    # where a word is missing, the word behind the gap is marked
    end = max(len(wrong) - after, before + 1)
    return [float(before <= place < end) for place in range(len(wrong))]


def _padded(rows: Sequence[tuple[list[int], list[float], bool]]) -> SentenceBatch:
    longest = max(len(ids) for ids, _, _ in rows)
    input_ids = torch.full((len(rows), longest), PAD_ID)
    mask, is_wrong = torch.zeros(len(rows), longest, dtype=torch.int64), torch.zeros(len(rows), longest)
    for place, (ids, marks, _) in enumerate(rows):
        input_ids[place, : len(ids)] = torch.tensor(ids)
        mask[place, : len(ids)] = 1
        is_wrong[place, : len(ids)] = torch.tensor(marks)
    return SentenceBatch(input_ids, mask, torch.tensor([int(is_true) for _, _, is_true in rows]), is_wrong)


def digest_of(sentences: Sequence[str]) -> str:
    """Identify sentences and their order."""
    return hashlib.sha256("\n".join(sentences).encode()).hexdigest()[:16]
