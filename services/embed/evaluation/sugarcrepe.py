"""SugarCrepe (Table 5.5): choosing between two similar captions the one that is true of an image.

Seven types of hard negatives. Accuracy is strict: the true caption must be nearer than the false one.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from services.embed.evaluation.embedders import Array32, ImageEmbedder
from services.embed.evaluation.instructions import SUGARCREPE
from services.jobs.sugarcrepe import COCO, CaptionPair


def evaluate_sugarcrepe(
    embedder: ImageEmbedder, folder: Path, choices: Mapping[str, Sequence[CaptionPair]]
) -> dict[str, float]:
    """Compute the accuracy in percent by type; `folder` is COCO's `val2017`.

    Raises BadFile before the first image is read if any is missing, and NoTextSide for a model without texts.
    """
    files = {kind: _numbered([choice.filename for choice in some]) for kind, some in choices.items()}
    images = {
        kind: COCO.images([folder / name for name in names], f"{embedder.name}, {kind}")
        for kind, names in files.items()
    }
    scores = {}
    for kind, some in choices.items():
        # equal texts are embedded once, so that they are exactly tied
        texts = _numbered([text for choice in some for text in (choice.caption, choice.negative_caption)])
        text_embeddings = embedder.embed_texts(list(texts))
        (image_embeddings,) = embedder.embed_images(images[kind], [SUGARCREPE[kind]])
        of_image = image_embeddings[[files[kind][choice.filename] for choice in some]]
        true = _cosines(of_image, text_embeddings[[texts[choice.caption] for choice in some]])
        false = _cosines(of_image, text_embeddings[[texts[choice.negative_caption] for choice in some]])
        scores[kind] = 100 * float(np.mean(true > false))
    return scores


def _cosines(images: Array32, texts: Array32) -> Array32:
    cosines: Array32 = (images * texts).sum(axis=1)
    return cosines


def _numbered(names: Sequence[str]) -> dict[str, int]:
    """Number the distinct names."""
    return {name: place for place, name in enumerate(dict.fromkeys(names))}
