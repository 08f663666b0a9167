"""Students of random weights: labels scored and free text, beside transformers."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.on_gpu.measuring import DEVICE, DTYPE, Figures, Sizes, compared, free, without_graphs
from benchmarks.predict_engines import (
    EOS,
    PAD,
    Answer,
    draw_inputs,
    draw_labels,
    free_generate,
    padded,
    random_t5,
    scoring,
)
from services.nn.captured import MAX_ROWS
from services.nn.loading import transformers
from services.predict.model.student import Decoded, Student

NUM_LABELS, TEXT_TOKENS = 16, 32


def predict(sizes: Sizes) -> Iterator[tuple[str, Figures]]:
    for shape in sizes.students:
        yield from of_shape(shape, sizes.inputs)
        free()


@torch.inference_mode()
def of_shape(shape: str, batches: Sequence[int]) -> Iterator[tuple[str, Figures]]:
    transformers()
    with torch.device(DEVICE):
        model = random_t5(shape).to(DTYPE)
    model.lm_head.weight[EOS] = 0  # so that no text ends early
    student = Student(model, None)
    labels = draw_labels(NUM_LABELS)
    sides: dict[str, dict[str, Answer]] = {
        f"{NUM_LABELS} labels": {
            "transformers": decoder_for_each_label(model, labels),
            "fovea": scoring(student, labels),
        },
        f"{TEXT_TOKENS} tokens of text": {
            "transformers": free_generate(model, TEXT_TOKENS),
            "fovea": lambda inputs: student.decode(student.encode(inputs), TEXT_TOKENS),
        },
    }
    for batch in batches:
        inputs = draw_inputs(batch, seed=batch)
        for work, answers in sides.items():
            ways: dict[str, Callable[[], Any]] = {name: partial(answer, inputs) for name, answer in answers.items()}
            eager = without_graphs(ways["fovea"])
            if batch <= MAX_ROWS:
                ways["fovea, no graphs"] = eager
            figures = compared(ways, num_items=batch)
            if batch <= MAX_ROWS:
                answered = zip(ways["fovea"](), eager(), strict=True)
                figures["answers alike without graphs"] = f"{sum(alike(*both) for both in answered)} of {batch}"
            yield f"{shape}, batch of {batch}, {work}", figures


def alike(one: Any, other: Any) -> bool:
    """Whether two texts or two labels' probabilities are the same but for rounding."""
    if isinstance(one, Decoded):
        return bool(one.token_ids == other.token_ids)
    return bool(np.allclose(one, other, atol=0.02))


def decoder_for_each_label(model: Any, labels: Sequence[list[int]]) -> Answer:
    """Score labels as a careful user of transformers does, who encodes each input once."""

    def answer(inputs: Sequence[list[int]]) -> Tensor:
        rows, mask = padded(inputs, DEVICE)
        encoded = model.encoder(input_ids=rows, attention_mask=mask)
        scores = []
        for label in labels:
            known = torch.tensor([[PAD, *label[:-1]]] * len(inputs), device=DEVICE)
            logits = model(encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=known).logits
            wanted = torch.tensor([label] * len(inputs), device=DEVICE)[:, :, None]
            scores.append(logits.float().log_softmax(dim=-1).gather(2, wanted).sum(dim=(1, 2)))
        return torch.stack(scores, dim=1).cpu()

    return answer
