"""Names, facts and relations of made-up documents, in the words of somebody who tries out a question."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

FIRST_NAMES = (
    "Alice", "Robert", "Grace", "Henry", "Julia", "Martin", "Rachel", "Oliver", "Sandra", "Victor", "Diane", "George",
    "Megan", "Philip", "Susan", "Walter", "Emily", "Trevor", "Nancy", "Howard",
)  # fmt: skip
LAST_NAMES = (
    "Smith", "Johnson", "Baker", "Turner", "Cooper", "Murphy", "Parker", "Collins", "Bennett", "Hughes", "Foster",
    "Russell", "Palmer", "Harrison", "Gibson", "Spencer", "Lawson", "Webster", "Barnes", "Fletcher",
)  # fmt: skip
FOREIGN_NAMES = (
    "Søren Ångström", "José Muñoz", "Nguyễn Văn Minh", "Chiara D'Angelo", "Małgorzata Wójcik", "Yuki Tanabe",
    "Björn Ólafsson", "Fatima El-Sayed", "Jürgen Müller", "Aoife O'Sullivan", "Thandiwe Nkosi", "Priya Raghunathan",
    "Dmitri Volkov", "François Lefèvre", "Ngozi Adeyemi", "Zeynep Yıldız", "Ioannis Papadakis", "Mei-Ling Zhao",
    "João Gonçalves", "Anneke van der Berg",
)  # fmt: skip
ADJECTIVES = (
    "red",
    "old",
    "black",
    "lazy",
    "spotted",
    "white",
    "clever",
    "brown",
    "noisy",
    "tiny",
    "friendly",
    "blind",
)
ANIMALS = (
    "cat",
    "dog",
    "hamster",
    "goat",
    "parrot",
    "turtle",
    "pony",
    "goose",
    "snake",
    "guinea pig",
    "rooster",
    "toad",
)
CITIES = (
    "Lisbon", "Dublin", "Chicago", "Oslo", "Nairobi", "Vienna", "Osaka", "Montreal", "Prague", "Lima", "Hamburg",
    "Athens",
)  # fmt: skip
JOBS = (
    "carpenter", "nurse", "pilot", "teacher", "plumber", "lawyer", "baker", "dentist", "farmer", "journalist", "waiter",
    "librarian",
)  # fmt: skip
INSTRUMENTS = (
    "violin", "trumpet", "piano", "flute", "cello", "drums", "harp", "guitar", "clarinet", "accordion", "banjo", "oboe",
)  # fmt: skip
COLORS = ("red", "green", "blue", "yellow", "purple", "orange", "white", "black", "pink", "grey", "turquoise", "brown")
BESIDE_THE_POINT = (
    "The museum opens at nine in the morning.",
    "The river flooded the valley twice last spring.",
    "A new bridge connects the two parts of the town.",
    "Tomatoes need a lot of sun and water.",
    "The train to the coast leaves every hour.",
    "The library has a large collection of maps.",
    "Copper is a good conductor of electricity.",
    "The festival takes place in the second week of June.",
    "Snow fell on the mountains during the night.",
    "The old mill was turned into a restaurant.",
    "The bakery around the corner is closed on Mondays.",
    "A marathon is a little longer than forty-two kilometres.",
)
_SYLLABLES = (
    "zu", "vek", "tir", "olm", "bra", "qui", "nax", "fen", "dro", "lis", "gur", "pho", "wem", "kaj", "ruv", "stel",
    "oth", "mib", "yar", "scun",
)  # fmt: skip

Names = Callable[[Random, int], list[str]]


@dataclass(frozen=True)
class Relation:
    """A statement about a name and a thing, and how a visitor asks for either of them."""

    statement: str
    question: str
    kind: str
    reverse: str | None = None

    @property
    def title(self) -> str:
        return f"{_shown(self.statement)} {_shown(self.question)}"

    @property
    def reverse_title(self) -> str:
        return f"{_shown(self.statement)} {_shown(self.reverse or '')}"

    def state(self, name: str, thing: str) -> str:
        return _filled(self.statement, name, thing)

    def ask(self, name: str) -> str:
        return _filled(self.question, name, "")

    def ask_reversed(self, thing: str) -> str:
        """Ask for the name. Only for relations with a `reverse`."""
        return _filled(self.reverse or "", "", thing)


def _filled(template: str, name: str, thing: str) -> str:
    article = "an" if thing[:1] in "aeiou" else "a"
    return template.format(x=name, p=thing, a_p=f"{article} {thing}")


def _shown(template: str) -> str:
    return template.format(x="X", p="P", a_p="a P")


# The first is the form of a README; the others are what a visitor changes it to.
RELATIONS: tuple[Relation, ...] = (
    Relation("{x} owns the {p}.", "What is the pet of {x}?", "pet"),
    Relation("{x} owns the {p}.", "What does {x} own?", "pet", "Who owns the {p}?"),
    Relation("{x} has {a_p}.", "What is the pet of {x}?", "pet"),
    Relation("{x} has {a_p}.", "What does {x} have?", "pet", "Who has the {p}?"),
    Relation("{x}'s pet is {a_p}.", "What is {x}'s pet?", "pet", "Whose pet is the {p}?"),
    Relation("The {p} belongs to {x}.", "What belongs to {x}?", "pet", "Who does the {p} belong to?"),
    Relation("{x} bought {a_p}.", "What did {x} buy?", "pet", "Who bought the {p}?"),
    Relation("{x} lives in {p}.", "Where does {x} live?", "city", "Who lives in {p}?"),
    Relation("{x} works as {a_p}.", "What is {x}'s job?", "job", "Who works as {a_p}?"),
    Relation("{x} was born in {p}.", "When was {x} born?", "year", "Who was born in {p}?"),
    Relation("{x}'s favourite colour is {p}.", "What is the favourite colour of {x}?", "color",
             "Whose favourite colour is {p}?"),
    Relation("{x} plays the {p}.", "Which instrument does {x} play?", "instrument", "Who plays the {p}?"),
    Relation("{x} is {p} years old.", "How old is {x}?", "age", "Who is {p} years old?"),
)  # fmt: skip
USUAL_RELATION = RELATIONS[0]


def ordinary_names(random: Random, count: int) -> list[str]:
    """Draw full names that share neither first nor last name."""
    pairs = zip(random.sample(FIRST_NAMES, count), random.sample(LAST_NAMES, count), strict=True)
    return [f"{first} {last}" for first, last in pairs]


def foreign_names(random: Random, count: int) -> list[str]:
    return random.sample(FOREIGN_NAMES, count)


def lower_case_names(random: Random, count: int) -> list[str]:
    return [name.lower() for name in ordinary_names(random, count)]


def invented_names(random: Random, count: int) -> list[str]:
    """Make up names of two words."""
    words: dict[str, None] = {}
    while len(words) < 2 * count:
        words["".join(random.sample(_SYLLABLES, random.randint(2, 3))).capitalize()] = None
    listed = list(words)
    return [f"{first} {last}" for first, last in zip(listed[::2], listed[1::2], strict=True)]


def similar_names(random: Random, count: int) -> list[str]:
    """Draw names of which each shares its first or its last name with another one."""
    firsts, lasts = random.sample(FIRST_NAMES, count), random.sample(LAST_NAMES, count)
    pairs = [(firsts[number // 2], lasts[(number + 1) // 2]) for number in range(count)]
    return [f"{first} {last}" for first, last in pairs]


def things(kind: str, random: Random, count: int) -> list[str]:
    """Draw different things of a kind: pets, cities, jobs, years, colors, instruments or ages."""
    if kind == "pet":
        pairs = zip(random.sample(ADJECTIVES, count), random.sample(ANIMALS, count), strict=True)
        return [f"{adjective} {animal}" for adjective, animal in pairs]
    return random.sample(_THINGS[kind], count)


def similar_pets(random: Random, count: int) -> list[str]:
    """Draw pets of which each shares its adjective or its animal with another one."""
    adjectives, animals = random.sample(ADJECTIVES, count), random.sample(ANIMALS, count)
    return [f"{adjectives[number // 2]} {animals[(number + 1) // 2]}" for number in range(count)]


_THINGS: Mapping[str, tuple[str, ...]] = {
    "city": CITIES,
    "job": JOBS,
    "year": tuple(str(year) for year in range(1931, 2012)),
    "color": COLORS,
    "instrument": INSTRUMENTS,
    "age": tuple(str(age) for age in range(11, 99)),
}
