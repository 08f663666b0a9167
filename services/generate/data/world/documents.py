"""Generated questions over documents about an open world, and questions that no document answers.

A document has one to four sentences about one name; the other documents tell the same relation of other names, or
other things. A question asks for the value by the name, or for the name by the value. It cannot be answered if its
name, its value or what it asks for is in no document; the right answer is then `REFUSAL`.

Legend: K documents.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from services.generate.data.world.relations import NARROW, RELATIONS, Form, Relation, filled
from services.generate.data.world.words import ADJECTIVES, ANIMALS, OBJECTS, names, syllables, values
from services.generate.prompts.templates import Document

REFUSAL = "The documents do not say."

_BESIDE = (
    "The {n} stands near the {m}.",
    "It was {a} and {b} all week.",
    "A {a} {n} needs a {b} {m}.",
    "The {a} road ends at the {n}.",
    "Nobody has seen the {a} {n} since last summer.",
    "The {n} opens at {i} and closes at {j}.",
    "There were {i} {a} visitors on the first day.",
    "Each {n} has {i} parts.",
    "The report was written some time ago.",
    "The {s} is a {a} kind of {n}.",
    "Rain is {b} for every {m}.",
    "The price of a {n} rose to {i} pounds.",
    "Most people think that a {n} is {a}.",
    "The {m} was moved to the other side of the {n}.",
    "This page says little about {s}.",
    "In {s} the winters are {a}.",
)


@dataclass(frozen=True)
class Scope:
    """The range of questions that are drawn.

    sentences: the most of a document. documents: the fewest and the most. reversed, refused, titled, similar, mixed:
    shares of questions for the name, of unanswerable questions, of sets of documents with titles, of sets whose names
    or values share words, and of sets in which each document may tell another relation.
    """

    documents: tuple[int, int] = (1, 10)
    sentences: int = 4
    reversed: float = 0.4
    refused: float = 0.28
    titled: float = 0.3
    similar: float = 0.3
    mixed: float = 0.3


@dataclass(frozen=True)
class Told:
    """One sentence about a name, and what it is about."""

    relation: Relation
    form: Form
    value: str
    text: str


@dataclass(frozen=True)
class Article:
    """A document: its name, and its sentences in order; the first sentence may tell what all documents tell."""

    name: str
    told: tuple[Told, ...]
    title: str = ""
    beside: tuple[str, ...] = ()

    @property
    def document(self) -> Document:
        return Document(" ".join([*(one.text for one in self.told), *self.beside]), self.title)


@dataclass(frozen=True)
class Asked:
    """A question and its right answer; `gold` is the document that answers, None if none does.

    `subject` is the name or value that the question mentions; `template` is the question without it.
    """

    question: str
    answer: str
    gold: int | None
    template: str = ""
    is_reversed: bool = False


@dataclass(frozen=True)
class World:
    """K documents with the relation that all of them tell, if any, and names that none of them mentions."""

    articles: tuple[Article, ...]
    strangers: tuple[str, ...]
    scope: Scope
    shared: Relation | None = None
    documents: tuple[Document, ...] = field(default=())

    def ask(self, generator: random.Random, *, is_answerable: bool | None = None) -> Asked:
        """Draw a question; whether it can be answered is drawn too, unless it is given."""
        if is_answerable is None:
            is_answerable = generator.random() >= self.scope.refused
        told = [k for k, article in enumerate(self.articles) if article.told]
        if is_answerable and told:
            found = _answerable(generator, self, told)
            if found is not None:
                return found
        return _unanswerable(generator, self, told)


def draw_world(generator: random.Random, scope: Scope, num_documents: int | None = None) -> World:
    """Draw K documents about different names."""
    count = generator.randint(*scope.documents) if num_documents is None else num_documents
    is_similar = generator.random() < scope.similar
    *known, one, two = names(generator, count + 2, is_similar=is_similar)
    generator.shuffle(known)
    shared = None if generator.random() < scope.mixed else generator.choice(RELATIONS)
    form = generator.choice(shared.forms) if shared is not None else None
    statement = generator.choice(form.statements) if form is not None else None
    things = values(generator, shared.value, count, is_similar=is_similar) if shared is not None else [""] * count
    most = generator.choice((1, scope.sentences, generator.randint(1, scope.sentences)))
    is_titled = generator.random() < scope.titled
    articles = []
    for name, thing in zip(known, things, strict=True):
        told = [] if shared is None or form is None else [_tell(generator, shared, form, name, thing, statement)]
        article = _article(generator, name, told, generator.randint(1, most))
        articles.append(replace(article, title=_title(generator, name) if is_titled else ""))
    if generator.random() < 0.06:  # documents about nobody
        articles = [Article("", (), "", (_beside(generator),)) for _ in articles]
    return World(tuple(articles), (one, two), scope, shared, tuple(article.document for article in articles))


def _title(generator: random.Random, name: str) -> str:
    return name if generator.random() < 0.8 else f"{generator.choice(ADJECTIVES)} {generator.choice(OBJECTS)}".title()


def _tell(
    generator: random.Random, relation: Relation, form: Form, name: str, value: str, statement: str | None = None
) -> Told:
    chosen = generator.choice(form.statements) if statement is None else statement
    return Told(relation, replace(form, statements=(chosen,)), value, filled(chosen, name, value))


def _article(generator: random.Random, name: str, told: list[Told], count: int) -> Article:
    taken = {_group(one.relation) for one in told}
    beside: list[str] = []
    while len(told) + len(beside) < count:
        if told and generator.random() < 0.15:
            beside.append(_beside(generator))
            continue
        relation = generator.choice(RELATIONS)
        if _group(relation) in taken:
            continue
        taken.add(_group(relation))
        (value,) = values(generator, relation.value, 1)
        told.append(_tell(generator, relation, generator.choice(relation.forms), name, value))
    generator.shuffle(told)
    return Article(name, tuple(told), "", tuple(beside))


# Relations that one question could mean are in the same group: a document tells only one of a group about its name.
_GROUPS = {"possession": "pet", "purchase": "bought", "pet purchase": "bought", "origin": "birth", "employer": "job"}


def _group(relation: Relation) -> str:
    return _GROUPS.get(relation.name, relation.name)


def _beside(generator: random.Random) -> str:
    form = generator.choice(_BESIDE)
    a, b = generator.sample(ADJECTIVES, 2)
    n, m = generator.sample(OBJECTS if generator.random() < 0.6 else ANIMALS, 2)
    i, j = generator.sample(range(2, 60), 2)
    return form.format(a=a, b=b, n=n, m=m, i=i, j=j, s=syllables(generator).capitalize())


def _questions(told: Told, *, is_reversed: bool) -> tuple[str, ...]:
    """The templates that ask for one side of a sentence."""
    form = told.form
    templates = form.reverse if is_reversed else form.questions
    if told.relation.name not in NARROW or not templates:
        return templates
    # these statements are only asked in their own words
    index = next(f.statements for f in told.relation.forms if f.questions == form.questions).index(form.statements[0])
    return (templates[min(index, len(templates) - 1)],)


def _answerable(generator: random.Random, world: World, told: Sequence[int]) -> Asked | None:
    """Draw a question that exactly one document answers; None if none was found."""
    for _ in range(8):
        k = generator.choice(told)
        article = world.articles[k]
        shared = [one for one in article.told if one.relation is world.shared]
        one = shared[0] if shared and generator.random() < 0.7 else generator.choice(article.told)
        is_reversed = bool(one.form.reverse) and generator.random() < world.scope.reversed
        if is_reversed and _is_ambiguous(world, k, one):
            continue
        templates = _questions(one, is_reversed=is_reversed)
        if not templates:
            continue
        template = generator.choice(templates)
        question = filled(template, article.name, one.value)
        return Asked(question, article.name if is_reversed else one.value, k, template, is_reversed)
    return None


def _is_ambiguous(world: World, k: int, told: Told) -> bool:
    """Whether another document tells the same value of a relation of the same group."""
    group = _group(told.relation)
    return any(
        other.value == told.value and _group(other.relation) == group
        for i, article in enumerate(world.articles)
        if i != k
        for other in article.told
    )


def _unanswerable(generator: random.Random, world: World, told: Sequence[int]) -> Asked:
    """Ask about somebody else, about another thing, or for something that nobody tells about the name."""
    draw = generator.random()
    relation = world.shared or generator.choice(RELATIONS)
    if draw < 0.6 and told:  # a known name, and something that its document does not tell
        article = world.articles[generator.choice(told)]
        taken = {_group(one.relation) for one in article.told}
        relation = generator.choice([one for one in RELATIONS if _group(one) not in taken])
        name = article.name
    else:
        if told and world.shared is None:
            relation = generator.choice(world.articles[generator.choice(told)].told).relation
        if generator.random() < 0.2:
            relation = generator.choice(RELATIONS)
        name = generator.choice(world.strangers)
    form = generator.choice(relation.forms)
    (value,) = values(generator, relation.value, 1)
    is_known = any(value in document.text for document in world.documents)
    if draw > 0.83 and form.reverse and not is_known:  # a thing that nobody has
        template = generator.choice(form.reverse)
        return Asked(filled(template, name, value), REFUSAL, None, template, is_reversed=True)
    template = generator.choice(form.questions)
    return Asked(filled(template, name, value), REFUSAL, None, template)
