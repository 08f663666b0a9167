"""Training texts of the open world: prompts, answers and follow-up questions, as rows of equal length.

A row is a prompt over documents in one of several layouts and its answer, then follow-up questions about the same
documents until the row is full, so that one reading of the documents teaches several look-ups.

Answers alone teach slowly to tell the sentences about a name apart: one token says which was right. The ends of
sentences and questions therefore have signs too: which relation they are about, and whether the sentence answers.

Shapes: B rows, T tokens, N losses, S signs.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from services.generate.prompts.templates import PLAIN, QUERY_AWARE, RANDOM_ORDER, Document, Template
from starters.generate.facts import Naming, ask, draw_facts
from starters.generate.litm.attending import position_weights
from starters.generate.llama import BOS_ID, EOS_ID
from starters.generate.world.documents import REFUSAL, Asked, Scope, World, draw_world
from starters.generate.world.relations import Relation
from starters.generate.world.subjects import GROUPS, group
from starters.generate.world.topics import draw_topics

# In the loss, relative to later tokens of answers, which are copied once the first is found.
CONTEXT_WEIGHT, FIRST_WEIGHT = 0.1, 3.0
# Of a row's tokens, the share whose loss counts.
COUNTED = 8
# A row of T tokens has at most T / SIGNED signs; UNKNOWN stands for what a sign does not say.
SIGNED, UNKNOWN = 5, -100

_SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "Answer in a few words.",
    "You answer questions about documents. Be brief and friendly.",
    "Use only what the documents say.",
    "You are an expert librarian, and you never invent anything.",
    "Keep every answer short and precise.",
    "You work at the front desk. Reply politely.",
    "Read carefully, then reply.",
)
_FRAMES = ("Document {n}: {t}", "[{n}] {t}", "Passage {n}: {t}", "{n}. {t}", "- {t}", "{t}", "Text {n}: {t}")


@dataclass(frozen=True)
class Mixture:
    """The texts of a stage: the scope of their questions, and the shares of other layouts than the usual prompt.

    pasted: documents in the first question. history: earlier questions and system prompts. narrow: questions of
    starters.generate.facts, with golds in the middle exp(−bias) times as frequent as at the ends. topical:
    keywords and questions of starters.generate.world.topics.
    """

    scope: Scope
    pasted: float = 0.0
    history: float = 0.0
    closed_book: float = 0.0
    narrow: float = 0.0
    bias: float = 0.0
    topical: float = 0.0


@dataclass(frozen=True)
class Rows:
    """`input_ids` (B, T) int64; the loss is that of `targets` (N,) at the flattened `places` (N,), by `weights`.

    At the flattened `signs` (S,) the tokens read so far tell the number of a group of relations, `relations` (S,), and
    whether the sentence answers the question, `answering` (S,) 0 or 1; both may be UNKNOWN.
    """

    input_ids: Tensor
    places: Tensor
    targets: Tensor
    weights: Tensor
    signs: Tensor
    relations: Tensor
    answering: Tensor


class _Text:
    """Token ids so far, each one's weight in the loss, and signs: a token, its relation and whether it answers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.ids = [BOS_ID]
        self.weights = [0.0]
        self.signs: list[tuple[int, int, int]] = []

    def tell(self, text: str, weight: float = CONTEXT_WEIGHT) -> Encoding:
        encoding: Encoding = self._tokenizer.encode(text, add_special_tokens=False)
        self.ids += encoding.ids
        self.weights += [weight] * len(encoding.ids)
        return encoding

    def ask(self, text: str, asked: Asked, world: World | None = None, *, is_asked_before: bool = False) -> None:
        """Tell a text that ends with a question, and sign the question and the sentences of the world in it.

        If the question also stands before the sentences, they tell whether they answer it.
        """
        start = len(self.ids)
        encoding = self.tell(text)
        relation = _number(asked.relation)
        places = [(place + len(asked.question) - 1, relation, UNKNOWN) for place in _all_of(asked.question, text)]
        if world is not None:
            places += _sentence_signs(text, world, asked, is_asked_before=is_asked_before)
        for place, number, answering in places:
            token = encoding.char_to_token(place)
            if token is not None:
                self.signs.append((start + token, number, answering))
        self.signs.append((len(self.ids) - 1, relation, UNKNOWN))

    def answer(self, answer: str) -> None:
        first = len(self.ids)
        self.tell(f" {answer}", 1.0)
        self.weights[first] = FIRST_WEIGHT
        self.ids.append(EOS_ID)
        self.weights.append(1.0)


def draw_rows(generator: random.Random, mixture: Mixture, tokenizer: Tokenizer, count: int, length: int) -> Rows:
    """Draw B = `count` rows of T = `length` tokens."""
    texts = [draw_text(generator, mixture, tokenizer, length) for _ in range(count)]
    ids = torch.tensor([text.ids[:length] + [EOS_ID] * (length - len(text.ids)) for text in texts])
    weights = torch.tensor([text.weights[:length] + [0.0] * (length - len(text.weights)) for text in texts])
    # the logits at a place predict the next token; answers come first, then a random part of the rest
    following = weights[:, 1:].flatten()
    noise = torch.rand(len(following), generator=torch.Generator().manual_seed(generator.getrandbits(40)))
    chosen = (following + 0.05 * noise * (following > 0)).topk(count * length // COUNTED).indices.sort().values
    rows, columns = chosen // (length - 1), chosen % (length - 1)
    signs = [_padded(text.signs, length, row) for row, text in enumerate(texts)]
    signed, relations, answering = torch.tensor(signs).flatten(0, 1).unbind(1)
    targets = ids[rows, columns + 1]
    return Rows(ids, rows * length + columns, targets, following[chosen], signed, relations, answering)


def _padded(signs: Sequence[tuple[int, int, int]], length: int, row: int) -> list[tuple[int, int, int]]:
    """The signs of a row at flattened places, T / SIGNED of them."""
    count = length // SIGNED
    shown = [(row * length + token, relation, answers) for token, relation, answers in signs if token < length]
    return shown[:count] + [(0, UNKNOWN, UNKNOWN)] * (count - len(shown))


def _number(relation: Relation | None) -> int:
    return GROUPS.index(group(relation)) if relation is not None and group(relation) in GROUPS else UNKNOWN


def _all_of(part: str, text: str) -> list[int]:
    return [found.start() for found in re.finditer(re.escape(part), text)]


def _sentence_signs(text: str, world: World, asked: Asked, *, is_asked_before: bool) -> list[tuple[int, int, int]]:
    """Sign the last character of each sentence, and the first of its value if the name stands before it."""
    signs: list[tuple[int, int, int]] = []
    for article, document in zip(world.articles, world.documents, strict=True):
        start = text.find(document.text)
        for one in article.told if start >= 0 else ():
            begin = text.find(one.text, start)
            is_gold = one is asked.told
            answers = int(is_gold) if is_asked_before else UNKNOWN
            value = one.text.rfind(asked.answer if is_gold and not asked.is_reversed else one.value)
            signs.append((begin + len(one.text) - 1, _number(one.relation), answers))
            if value > one.text.find(article.name):
                signs.append((begin + value, UNKNOWN, answers))
    return signs


def draw_text(generator: random.Random, mixture: Mixture, tokenizer: Tokenizer, length: int) -> _Text:
    """Draw one row's text of at most about T tokens; follow-up questions fill it."""
    for attempt in range(20):
        fewest, most = mixture.scope.documents
        num_documents = max(1, generator.randint(fewest, most) - attempt)
        text = _Text(tokenizer)
        more = _begin(generator, mixture, text, num_documents)
        if len(text.ids) > length:
            continue
        while len(text.ids) < length - 12:
            asked = more()
            text.ask(f"\n\nQuestion: {asked.question}\nAnswer:", asked)
            text.answer(asked.answer)
        return text
    return text


class _Asker:
    """Asks further questions about a world, sometimes "And …?" for the same about another name."""

    def __init__(self, generator: random.Random, world: World, first: Asked | None = None) -> None:
        self._generator, self._world, self._last = generator, world, first

    def __call__(self) -> Asked:
        if self._last is not None and self._generator.random() < 0.12:
            asked = _elliptic(self._generator, self._world, self._last)
            if asked is not None:
                return asked
        self._last = self._world.ask(self._generator)
        return self._last


def _elliptic(generator: random.Random, world: World, last: Asked) -> Asked | None:
    """Ask the last question about another name, in short; None if no other document answers it."""
    if last.gold is None or last.is_reversed or world.shared is None:
        return None
    before = next((one for one in world.articles[last.gold].told if one.value == last.answer), None)
    others = [
        (k, article.name, one)
        for k, article in enumerate(world.articles)
        for one in article.told
        if before is not None and k != last.gold and one.relation is before.relation
    ]
    if not others:
        return None
    k, name, told = generator.choice(others)
    form = generator.choice(("And {x}?", "And what about {x}?", "What about {x}?", "and {x}?", "And for {x}?"))
    return Asked(form.replace("{x}", name), told.value, k, last.template, told=told)


def _begin(generator: random.Random, mixture: Mixture, text: _Text, num_documents: int) -> Callable[[], Asked]:
    """Write the prompt and its answer; return what asks on."""
    draw = generator.random()
    if draw < mixture.narrow:
        return _Narrow(generator, mixture, text)
    if generator.random() < mixture.topical:
        return _Topical(generator, mixture, text, num_documents)
    draw = generator.random()
    world = draw_world(generator, mixture.scope, num_documents)
    first = world.ask(generator)
    if draw < mixture.closed_book:
        for _ in range(generator.randint(1, 2)):
            text.tell(f"Question: {first.question}\nAnswer:")
            text.answer(REFUSAL)
            text.tell("\n\n")
            first = world.ask(generator)
        draw = 1.0
    elif draw < mixture.closed_book + mixture.pasted:
        return _pasted(generator, text, world, first)
    if generator.random() < mixture.history:
        first = _history(generator, text, world, first)
    template = generator.choices((QUERY_AWARE, PLAIN, RANDOM_ORDER), (0.85, 0.1, 0.05))[0]
    prompt = prompt_text(template, first.question, world.documents)
    text.ask(prompt, first, world, is_asked_before=template is QUERY_AWARE)
    text.answer(first.answer)
    return _Asker(generator, world, first)


def _pasted(generator: random.Random, text: _Text, world: World, first: Asked) -> _Asker:
    """Write the documents into the first question, as somebody does in a chat."""
    if generator.random() < 0.5:
        text.tell(generator.choice(_SYSTEM_PROMPTS) + "\n\n")
    frame = generator.choice(_FRAMES)
    shown = [frame.format(n=n, t=document.text) for n, document in enumerate(world.documents, start=1)]
    pasted = generator.choice(("\n", "\n", "\n\n", " ")).join(shown)
    head = generator.choice(("", "", "Here is what I know:\n", "Documents:\n"))
    end = generator.choice(("\n", "\n\n", " "))
    text.ask(f"Question: {head}{pasted}{end}{first.question}\nAnswer:", first, world)
    text.answer(first.answer)
    return _Asker(generator, world, first)


def _history(generator: random.Random, text: _Text, world: World, first: Asked) -> Asked:
    """Write a system prompt, an earlier question and its answer, or both; return the question to be asked now."""
    if generator.random() < 0.6:
        text.tell(generator.choice(_SYSTEM_PROMPTS) + "\n\n")
    if generator.random() < 0.7:
        text.tell(f"Question: {first.question}\nAnswer:")
        text.tell(f" {first.answer}")
        text.ids.append(EOS_ID)
        text.weights.append(0.0)
        text.tell("\n\n")
        return (_elliptic(generator, world, first) if generator.random() < 0.5 else None) or world.ask(generator)
    return first


class _Narrow:
    """Writes a prompt over documents of starters.generate.facts, whose names are often wrong, and asks on."""

    NAMING = Naming(half_wrong=0.35, all_wrong=0.05)

    def __init__(self, generator: random.Random, mixture: Mixture, text: _Text) -> None:
        self._generator = generator
        most = max(2, mixture.scope.documents[1])
        self._facts = draw_facts(generator, generator.randint(min(4, most), most), self.NAMING, note_rate=0.1)
        self._positions = position_weights(len(self._facts), mixture.bias)
        first = self()
        documents = [Document(fact.text, fact.title) for fact in self._facts]
        text.tell(prompt_text(QUERY_AWARE, first.question, documents))
        text.answer(first.answer)

    def __call__(self) -> Asked:
        gold = self._generator.choices(range(len(self._facts)), self._positions)[0]
        question = ask(self._generator, self._facts, gold, self.NAMING)
        return Asked(question.question, question.answer, gold)


class _Topical:
    """Writes a prompt over documents about topics, with keywords for its question, and asks on.

    The answer is the sentence; a query about a topic of none of the documents is refused.
    """

    def __init__(self, generator: random.Random, mixture: Mixture, text: _Text, num_documents: int) -> None:
        self._generator, self._refused = generator, mixture.scope.refused
        *self._topics, self._other = draw_topics(generator, num_documents + 1)
        first = self()
        text.tell(prompt_text(QUERY_AWARE, first.question, [Document(topic.text) for topic in self._topics]))
        text.answer(first.answer)

    def __call__(self) -> Asked:
        if self._generator.random() < self._refused:
            return Asked(self._generator.choice(self._other.queries), REFUSAL, None)
        gold = self._generator.randrange(len(self._topics))
        topic = self._topics[gold]
        return Asked(self._generator.choice(topic.queries), topic.text, gold)


def prompt_text(template: Template, question: str, documents: Sequence[Document]) -> str:
    """The prompt, ready for the answer."""
    return "".join(piece.text for piece in template.render(question, documents))
