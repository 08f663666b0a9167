"""A published data set in the forms that trainings and evaluations read.

<type>.json             SugarCrepe's form: `fovea evaluate compositionality sugarcrepe --data`
sugarcrepe_pp/          SugarCrepe++'s form, of pairs with a second true caption: `… sugarcrepe-pp --data`
pairs.jsonl             all fields; also a table of images and captions: `fovea train fsc-clip --images`
instructions.json       LLaVA's form, a choice of two captions: `fovea train focallens --llava`
README.md               the data card
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from services.core.durable_files import write_durably
from services.curate.data.pairs import write_pairs, write_published
from services.curate.pipeline.accounts import Accounts
from services.curate.pipeline.recipe import Recipe
from services.jobs.sugarcrepe import Pair

PAIRS, INSTRUCTIONS, CARD, TWO_CAPTIONS = "pairs.jsonl", "instructions.json", "README.md", "sugarcrepe_pp"
QUESTION = '<image>\nWhich sentence is true of the picture: "{}" or "{}"?'


def publish(folder: Path, recipe: Recipe, pairs: Sequence[Pair], accounts: Accounts) -> None:
    """Write the data set in all forms. Raises OSError."""
    write_published(folder, pairs)
    write_two_captions(folder / TWO_CAPTIONS, pairs)
    write_pairs(folder / PAIRS, pairs)
    _write_json(folder / INSTRUCTIONS, [_instruction(pair) for pair in pairs])
    write_durably(folder / CARD, [_card(recipe, accounts, pairs).encode()])


def write_two_captions(folder: Path, pairs: Sequence[Pair]) -> None:
    """Write the pairs with two true captions in SugarCrepe++'s form: a list of records for each type that occurs."""
    chosen = [pair for pair in pairs if pair.second_caption is not None]
    for kind in dict.fromkeys(pair.kind for pair in chosen):
        records = [
            {
                "id": place,
                "filename": pair.filename,
                "caption": pair.caption,
                "caption2": pair.second_caption,
                "negative_caption": pair.negative_caption,
            }
            for place, pair in enumerate(one for one in chosen if one.kind == kind)
        ]
        _write_json(folder / f"{kind}.json", records)


def _card(recipe: Recipe, accounts: Accounts, pairs: Sequence[Pair]) -> str:
    """Write a data card: the source, how the negatives were made, what became of the candidates, and the fields."""
    made_by = ", ".join(sorted({pair.made_by for pair in pairs if pair.made_by})) or recipe.generate.method
    refined = "with adversarial refinement" if recipe.refine is not None else "without adversarial refinement"
    reviewed = "reviewed by people" if recipe.review is not None else "not reviewed by people"
    return f"""# {recipe.name}

{len(pairs)} pairs of captions of an image: a true one, and a hard negative that differs by one small change of meaning.

- Captions: {recipe.captions.file.name}. Licence: {recipe.licence or "not stated"}.
- Negatives: made by {made_by}; {refined}; {reviewed}.
- Fields: `filename` of the image, `caption` (true), `negative_caption` (false); in `pairs.jsonl` also `id`, `kind`,
  `made_by`, and a `second_caption` (true) where there is one.

{accounts.table().to_markdown()}
{accounts.reasons().to_markdown()}"""


def _instruction(pair: Pair) -> dict[str, Any]:
    """Ask for the true caption of the two, which comes first in half of the questions."""
    texts = [pair.caption, pair.negative_caption]
    if sha256(pair.id.encode("utf-8", "surrogatepass")).digest()[0] % 2:
        texts.reverse()
    turns = [{"from": "human", "value": QUESTION.format(*texts)}, {"from": "gpt", "value": pair.caption}]
    return {"id": pair.id, "image": pair.filename, "conversations": turns}


def _write_json(path: Path, content: Any) -> None:
    write_durably(path, [json.dumps(content, indent=1, ensure_ascii=False).encode()])
