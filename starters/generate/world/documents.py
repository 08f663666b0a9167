"""Generated questions over documents about an open world, and questions that no document answers.

A document has one to four sentences about one name; the other documents tell the same relation of other names, or
other things, sometimes of the same name. A question asks for the value by the name, or for the name by the value. It
cannot be answered if its name, its value or what it asks for is in no document, or if they are there but not together;
the right answer is then `REFUSAL`.

Legend: K documents.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from services.generate.prompts.templates import Document
from starters.generate.world.relations import NARROW, Form, Relation, filled
from starters.generate.world.subjects import COMPANIES, PEOPLE, Subject, draw_relation, group, remark
from starters.generate.world.words import ADJECTIVES, ANIMALS, OBJECTS, names, syllables, values

REFUSAL = "The documents do not say."

# Shares of sentences with a remark after the name, and of questions about such a sentence that ask for the remark.
REMARKED, ASIDE_ASKED = 0.12, 0.3

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

    sentences: the most of a document. documents: the fewest and the most. reversed, refused, titled, similar, mixed,
    divided, corporate: shares of questions for the name, of unanswerable questions, of sets of documents with titles,
    of sets whose names or values share words, of sets in which each document may tell another relation, of sets in
    which two documents are about the same name, and of sets about companies.
    """

    documents: tuple[int, int] = (1, 10)
    sentences: int = 4
    reversed: float = 0.48
    refused: float = 0.34
    titled: float = 0.3
    similar: float = 0.3
    mixed: float = 0.3
    divided: float = 0.12
    corporate: float = 0.12


@dataclass(frozen=True)
class Told:
    """One sentence about a name, and what it is about; `aside` is what a remark in it tells besides."""

    relation: Relation
    form: Form
    value: str
    text: str
    aside: "Told | None" = None

    @property
    def facts(self) -> tuple["Told", ...]:
        """The sentence itself, and what it tells besides."""
        return (self,) if self.aside is None else (self, self.aside)

    @property
    def groups(self) -> set[str]:
        """The groups of the relations that it tells."""
        return {group(one.relation) for one in self.facts}


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

    @property
    def groups(self) -> set[str]:
        """The groups of what the document tells about its name."""
        return set().union(*(one.groups for one in self.told))


@dataclass(frozen=True)
class Asked:
    """A question and its right answer; `gold` is the document that answers, None if none does.

    `template` is the question without its name or value, `told` the sentence that answers, and `relation` what is asked
    for, None where only an earlier question says it.
    """

    question: str
    answer: str
    gold: int | None
    template: str = ""
    is_reversed: bool = False
    told: Told | None = None
    relation: Relation | None = None


@dataclass(frozen=True)
class World:
    """K documents with the relation that all of them tell, if any, and names that none of them mentions."""

    articles: tuple[Article, ...]
    strangers: tuple[str, ...]
    scope: Scope
    shared: Relation | None = None
    subject: Subject = PEOPLE
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
    """Draw K documents about different names, or two of them about the same."""
    count = generator.randint(*scope.documents) if num_documents is None else num_documents
    subject = COMPANIES if generator.random() < scope.corporate else PEOPLE
    is_similar = generator.random() < scope.similar
    *known, one, two = names(generator, count + 2, is_similar=is_similar, make=subject.name)
    generator.shuffle(known)
    if count > 1 and generator.random() < scope.divided:
        known[generator.randrange(1, count)] = known[0]
    shared = None if generator.random() < scope.mixed else draw_relation(generator, subject)
    form = generator.choice(shared.forms) if shared is not None else None
    if form is not None:
        form = replace(form, statements=(generator.choice(form.statements),))
    things = values(generator, shared.value, count, is_similar=is_similar) if shared is not None else [""] * count
    fewest, most = generator.choices(((1, 1), (2, scope.sentences), (1, scope.sentences)), (0.3, 0.4, 0.3))[0]
    is_titled = generator.random() < scope.titled
    articles: list[Article] = []
    for name, thing in zip(known, things, strict=True):
        taken = set().union(*(article.groups for article in articles if article.name == name))
        told = []
        if shared is not None and form is not None:
            told = [one for one in [_tell(generator, subject, shared, form, name, thing)] if not one.groups & taken]
        article = _article(generator, subject, name, told, taken, generator.randint(min(fewest, most), most))
        articles.append(replace(article, title=_title(generator, name) if is_titled else ""))
    if generator.random() < 0.06:  # documents about nobody
        articles = [Article("", (), "", (_beside(generator),)) for _ in articles]
    documents = tuple(article.document for article in articles)
    return World(tuple(articles), (one, two), scope, shared, subject, documents)


def _title(generator: random.Random, name: str) -> str:
    return name if generator.random() < 0.8 else f"{generator.choice(ADJECTIVES)} {generator.choice(OBJECTS)}".title()


def _tell(generator: random.Random, subject: Subject, relation: Relation, form: Form, name: str, value: str) -> Told:
    statement = said = generator.choice(form.statements)
    aside = None
    if "{x} " in statement and generator.random() < REMARKED:
        text, other, told = remark(generator, subject)
        if other is None or group(other) != group(relation):
            said = statement.replace("{x}", "{x}" + text, 1)
            aside = None if other is None else Told(other, generator.choice(other.forms), told, "")
    return Told(relation, replace(form, statements=(statement,)), value, filled(said, name, value), aside)


def _article(
    generator: random.Random, subject: Subject, name: str, told: list[Told], others: set[str], count: int
) -> Article:
    """Add sentences to those told, up to `count`; `others` are the groups that other documents tell of the name."""
    taken = Article(name, tuple(told)).groups | others
    beside: list[str] = []
    while len(told) + len(beside) < count:
        if told and generator.random() < 0.15:
            beside.append(_beside(generator))
            continue
        relation = draw_relation(generator, subject)
        (value,) = values(generator, relation.value, 1)
        one = _tell(generator, subject, relation, generator.choice(relation.forms), name, value)
        if not one.groups & taken:
            taken |= one.groups
            told.append(one)
    generator.shuffle(told)
    return Article(name, tuple(told), "", tuple(beside))


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
        one = shared[0] if shared and generator.random() < 0.3 else generator.choice(article.told)
        fact = one.aside if one.aside is not None and generator.random() < ASIDE_ASKED else one
        is_reversed = bool(fact.form.reverse) and generator.random() < world.scope.reversed
        if is_reversed and _is_ambiguous(world, k, fact):
            continue
        templates = _questions(fact, is_reversed=is_reversed)
        if not templates:
            continue
        template = generator.choice(templates)
        question = filled(template, article.name, fact.value)
        answer = article.name if is_reversed else fact.value
        return Asked(typed(generator, question), answer, k, template, is_reversed, one, fact.relation)
    return None


def typed(generator: random.Random, question: str) -> str:
    """Type a question as people do: some without capitals, without a question mark, or politely."""
    draw = generator.random()
    if draw < 0.04:
        return question[0].lower() + question[1:]
    if draw < 0.06:
        return question[0].lower() + question[1:].rstrip("?.")
    if draw < 0.15:
        return question.lower().rstrip("?.")
    if draw < 0.17 and not question.startswith(("Tell", "Do ")):
        return f"{generator.choice(('Please tell me:', 'Hello,', 'One question:'))} {question[0].lower()}{question[1:]}"
    return question


def _is_ambiguous(world: World, k: int, told: Told) -> bool:
    """Whether another document tells the same value of a relation of the same group."""
    return any(
        other.value == told.value and group(other.relation) == group(told.relation)
        for i, article in enumerate(world.articles)
        if i != k
        for sentence in article.told
        for other in sentence.facts
    )


def _unanswerable(generator: random.Random, world: World, told: Sequence[int]) -> Asked:
    """Ask about somebody else, about another thing, or for something that nobody tells about the name."""
    kind = generator.choices(("relation", "stranger", "value", "misplaced"), (0.48, 0.35, 0.1, 0.07))[0]
    if kind == "relation" and told:
        return _another_relation(generator, world, world.articles[generator.choice(told)].name)
    if kind == "misplaced" and told:
        found = _misplaced(generator, world, world.articles[generator.choice(told)])
        if found is not None:
            return found
    relation = world.shared or draw_relation(generator, world.subject)
    if told and world.shared is None:
        relation = generator.choice(world.articles[generator.choice(told)].told).relation
    if generator.random() < 0.2:
        relation = draw_relation(generator, world.subject)
    form = generator.choice(relation.forms)
    (value,) = values(generator, relation.value, 1)
    is_known = any(value in document.text for document in world.documents)
    if kind == "value" and form.reverse and not is_known:  # a thing that nobody has
        return _refused(generator, relation, "", value)
    return _refused(generator, relation, generator.choice(world.strangers), "")


def _another_relation(generator: random.Random, world: World, name: str) -> Asked:
    """Ask for what the documents do not tell about a known name, half the time for what they tell about others."""
    taken = set().union(*(article.groups for article in world.articles if article.name == name))
    elsewhere = [one.relation for article in world.articles for one in article.told if group(one.relation) not in taken]
    relation = generator.choice(elsewhere) if elsewhere and generator.random() < 0.5 else None
    while relation is None or group(relation) in taken:
        relation = draw_relation(generator, world.subject)
    return _refused(generator, relation, name, "")


def _misplaced(generator: random.Random, world: World, article: Article) -> Asked | None:
    """Ask for the name by a known value in a relation that no document tells of it; None if there is none."""
    one = generator.choice(article.told)
    facts = [other for any_one in world.articles for sentence in any_one.told for other in sentence.facts]
    told = {group(other.relation) for other in facts if other.value == one.value}
    others = [r for r in world.subject.relations if r.value == one.relation.value and group(r) not in told]
    others = [r for r in others if all(form.reverse for form in r.forms)]
    return _refused(generator, generator.choice(others), "", one.value) if others else None


def _refused(generator: random.Random, relation: Relation, name: str, value: str) -> Asked:
    form = generator.choice(relation.forms)
    template = generator.choice(form.reverse if value else form.questions)
    question = typed(generator, filled(template, name, value))
    return Asked(question, REFUSAL, None, template, bool(value), None, relation)
