"""Decisions about an image: the options of a question are captions, and the probability of each is its caption's.

The model compares the image with texts and reads nothing else: no text beside the image, and of a choice or a score not
the instructions. A predicate's instructions are a caption by themselves, whose probability only models that were
trained with a sigmoid know.
"""

from functools import partial

from services.core.decisions import (
    ChoiceQuestion,
    DecisionImage,
    DecisionRequest,
    DecisionText,
    PredicateQuestion,
    instructions_of,
    options_of,
    user_parts,
)
from services.core.errors import InvalidField, check_count
from services.core.exchange import RequestContext
from services.core.http.bodies import MAX_INLINE_BYTES
from services.core.http.decisions import Decided, Distribution
from services.core.images.inputs import ImageInput, image_input
from services.nn.plain_texts import is_blank
from services.score.call import Caption, ScoreCall
from services.score.http.answers import matches, probabilities
from services.score.service import ScoreService


async def decide(service: ScoreService, body: DecisionRequest, context: RequestContext) -> Decided:
    """Answer each question by the scores of its captions.

    Raises InvalidField for what the model can't read or decide, and what `ScoreService.score` raises.
    """
    resident = await service.models.find(body.model)
    if resident.description is None:
        raise resident.checkpoint.not_loaded()
    _check_predicates(body, resident.description.logit_bias)
    captions = [_captions(body, index) for index in range(len(body.questions))]
    every = [caption for some in captions for caption in some]
    check_count("questions", len(every), service.limits.max_captions, "captions")
    image = await _image(service, body)
    pairs = [(0, place) for place in range(len(every))]
    scored = await service.score(ScoreCall([image], every, pairs, body.model), context)
    _check_predicates(body, scored.logit_bias)  # also of a version that came meanwhile
    distributions, start = [], 0
    for question, some in zip(body.questions, captions, strict=True):
        those = slice(start, start := start + len(some))
        if isinstance(question, PredicateQuestion):
            shares = matches(scored.global_cosines[those], scored.logit_scale, scored.logit_bias or 0.0)
        else:
            shares = probabilities(scored.scores[those], scored.logit_scale)
        distributions.append(Distribution(shares.tolist()))
    return Decided(scored.model, distributions, scored.prompt_tokens)


def _check_predicates(body: DecisionRequest, logit_bias: float | None) -> None:
    """Raises InvalidField for a predicate that is asked of a model without a probability for a single caption."""
    for index, question in enumerate(body.questions):
        if isinstance(question, PredicateQuestion) and logit_bias is None:
            param = f"questions.{index}"
            told = "This model compares captions, and has no probability for one alone"
            raise InvalidField(f"{param}: {told}; ask a choice between the statement and others.", param=param)


def _captions(body: DecisionRequest, index: int) -> list[Caption]:
    question, param = body.questions[index], f"questions.{index}"
    if isinstance(question, PredicateQuestion):
        captions = [Caption(instructions_of(question), f"{param}.instructions")]
    else:
        captions = [Caption(option.text, option.param) for option in options_of(question, param)]
    if isinstance(question, ChoiceQuestion):
        for one, caption in zip(question.choices, captions, strict=True):
            if isinstance(one.value, bool) and not one.description:
                told = "A boolean needs a description, which is the caption that it stands for"
                raise InvalidField(f"{caption.param}: {told}.", param=caption.param)
    for caption in captions:
        if is_blank(caption.text):
            raise InvalidField(f"{caption.param}: The text is empty.", param=caption.param)
    return captions


async def _image(service: ScoreService, body: DecisionRequest) -> ImageInput:
    """Return the only image of the input. Raises InvalidField for none, for several, and for anything beside it."""
    images: list[tuple[str, DecisionImage]] = []
    for param, part in user_parts(body):
        if isinstance(part, DecisionImage):
            images.append((param, part))
        elif not (isinstance(part, DecisionText) and is_blank(part.text)):
            told = "This model reads an image (an input_image part), and no text or JSON beside it"
            raise InvalidField(f"{param}: {told}; say it in the options.", param=param)
    if len(images) != 1:
        param = images[1][0] if images else "input"
        raise InvalidField(f"{param}: The input must have one image; it has {len(images)}.", param=param)
    param, part = images[0]
    parse = partial(image_input, part.image_url, f"{param}.image_url", service.limits.images)
    return parse() if len(part.image_url) <= MAX_INLINE_BYTES else await service.scorer.inputs.threads.run(parse)
