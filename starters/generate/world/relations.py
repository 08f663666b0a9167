"""Relations between a name and a value: how they are stated, and how either side is asked for.

In a template, `{x}` is the name, `{p}` the value, and `{a}` the value with its indefinite article. A template that is
listed twice is drawn twice as often.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """Statements that mean the same to a questioner, questions for the value, and questions for the name."""

    statements: tuple[str, ...]
    questions: tuple[str, ...]
    reverse: tuple[str, ...] = ()


@dataclass(frozen=True)
class Relation:
    """A relation and the class of its values. A question of any form may be asked of any of its statements."""

    name: str
    value: str
    forms: tuple[Form, ...]


_OWNED = ("What does {x} own?", "What belongs to {x}?", "Which thing is owned by {x}?", "What is owned by {x}?")
# asked of what "belongs": the value stands before the name there, which is harder to read
_BELONGINGS = ("What belongs to {x}?", "What belongs to {x}?", "Which thing belongs to {x}?", "What is the property of"
               " {x}?", "What is {x}'s property?")  # fmt: skip
_OWNERS = ("Who owns the {p}?", "Who is the owner of the {p}?", "Who does the {p} belong to?", "To whom does the {p}"
           " belong?", "Who has the {p}?", "Whose is the {p}?")  # fmt: skip
_PETS = ("What is the pet of {x}?", "What is {x}'s pet?", "Which pet does {x} have?", "What pet does {x} own?",
         "Which animal does {x} have?", "What animal does {x} keep?", "Tell me the pet of {x}.")  # fmt: skip
_PET_OWNERS = ("Whose pet is the {p}?", "Who keeps the {p}?", "Who is the {p} the pet of?")

RELATIONS: tuple[Relation, ...] = (
    Relation("pet", "animal", (
        Form(("{x} owns the {p}.", "{x} owns {a}.", "The owner of the {p} is {x}."), (*_PETS, *_OWNED),
             (*_PET_OWNERS, *_OWNERS)),
        Form(("{x} has {a}.", "{x} has the {p}.", "{x} has got {a}.", "{x} has {a} as a pet."),
             (*_PETS, "What does {x} have?", "What has {x} got?"),
             (*_PET_OWNERS, "Who has the {p}?", "Who has {a}?", "Who has got {a}?")),
        Form(("{x}'s pet is {a}.", "{x}'s pet is the {p}.", "The pet of {x} is {a}.", "The {p} is {x}'s pet.",
              "{x} keeps {a} as a pet.", "{x} keeps {a}.", "{x} looks after the {p}.", "The {p} is kept by {x}."),
             _PETS, _PET_OWNERS),
        Form(("The {p} belongs to {x}.", "The {p} is owned by {x}.", "The {p} is the property of {x}."),
             (*_OWNED, *_BELONGINGS, *_PETS), _OWNERS),
    )),
    Relation("possession", "object", (
        Form(("{x} owns the {p}.", "{x} owns {a}.", "{x} is the owner of the {p}."), _OWNED, _OWNERS),
        Form(("{x} has {a}.", "{x} has the {p}.", "{x} has got {a}."), ("What does {x} have?", "What has {x} got?"),
             ("Who has the {p}?", "Who has {a}?", "Who has got the {p}?")),
        Form(("The {p} belongs to {x}.", "The {p} is owned by {x}.", "The {p} is {x}'s."), (*_OWNED, *_BELONGINGS),
             _OWNERS),
        Form(("{x} carries {a}.", "{x} always carries the {p}."), ("What does {x} carry?", "What is carried by {x}?"),
             ("Who carries the {p}?", "Who carries {a}?")),
    )),
    Relation("purchase", "object", (
        Form(("{x} bought {a}.", "{x} bought the {p}.", "The {p} was bought by {x}.", "Yesterday {x} bought {a}.",
              "{x} has bought {a}."),
             ("What did {x} buy?", "What has {x} bought?", "What was bought by {x}?", "Which thing did {x} buy?"),
             ("Who bought the {p}?", "Who bought {a}?", "Who has bought the {p}?", "By whom was the {p} bought?")),
    )),
    Relation("pet purchase", "animal", (
        Form(("{x} bought {a}.", "{x} bought the {p}.", "The {p} was bought by {x}."),
             ("What did {x} buy?", "What has {x} bought?", "Which animal did {x} buy?"),
             ("Who bought the {p}?", "Who bought {a}?")),
    )),
    Relation("sale", "object", (
        Form(("{x} sold {a}.", "{x} sold the {p}.", "The {p} was sold by {x}."),
             ("What did {x} sell?", "What was sold by {x}?", "Which thing did {x} sell?"),
             ("Who sold the {p}?", "Who sold {a}?")),
    )),
    Relation("finding", "object", (
        Form(("{x} found {a}.", "{x} found the {p}.", "The {p} was found by {x}.", "{x} lost {a}."),
             ("What did {x} find?", "What was found by {x}?"), ("Who found the {p}?", "Who found {a}?")),
    )),
    Relation("home", "place", (
        Form(("{x} lives in {p}.", "{x} is living in {p}.", "{x}'s home is in {p}.", "{x} has lived in {p} for years.",
              "The home of {x} is in {p}.", "{x} resides in {p}.", "{p} is the home of {x}.",
              "{p} is where {x} lives."),
             ("Where does {x} live?", "In which city does {x} live?", "Where is {x} living?", "Where is {x}'s home?",
              "Which city does {x} live in?", "What town does {x} live in?", "Where does {x} reside?"),
             ("Who lives in {p}?", "Who is living in {p}?", "Whose home is in {p}?", "Who resides in {p}?")),
    )),
    Relation("job", "job", (
        Form(("{x} works as {a}.", "{x} is {a}.", "{x}'s job is {a}.", "{x} is {a} by profession.",
              "{x} earns a living as {a}.", "{x} is employed as {a}.", "The job of {x} is {a}."),
             ("What is {x}'s job?", "What is the job of {x}?", "What does {x} do?", "What does {x} work as?",
              "What is {x}'s profession?", "Which job does {x} have?", "What does {x} do for a living?",
              "What is the profession of {x}?"),
             ("Who works as {a}?", "Who is {a}?", "Who is the {p}?", "Whose job is {a}?", "Who is employed as {a}?")),
    )),
    Relation("employer", "business", (
        Form(("{x} works at the {p}.", "{x} works for the {p}.", "{x} is employed by the {p}."),
             ("Where does {x} work?", "Who employs {x}?", "What is {x}'s place of work?", "Who does {x} work for?"),
             ("Who works at the {p}?", "Who works for the {p}?", "Who is employed by the {p}?")),
    )),
    Relation("birth", "birth", (
        Form(("{x} was born in {p}.", "{x} was born in the year {p}.", "In {p} {x} was born."),
             ("When was {x} born?", "In which year was {x} born?", "What year was {x} born in?",
              "What is {x}'s year of birth?", "What is the year of birth of {x}?"),
             ("Who was born in {p}?", "Whose year of birth is {p}?")),
    )),
    Relation("color", "color", (
        Form(("{x}'s favourite colour is {p}.", "The favourite colour of {x} is {p}.", "{p} is {x}'s favourite colour.",
              "{x}'s favorite color is {p}.", "The color that {x} likes best is {p}.", "{x} likes {p} best.",
              "{p} is the colour that {x} likes best.", "{p} is the favourite colour of {x}."),
             ("What is the favourite colour of {x}?", "What is {x}'s favourite colour?", "Which colour does {x} like"
              " best?", "What is {x}'s favorite color?", "What color does {x} prefer?",
              "What is the favorite color of {x}?"),
             ("Whose favourite colour is {p}?", "Who likes {p} best?", "Whose favorite color is {p}?")),
    )),
    Relation("instrument", "instrument", (
        Form(("{x} plays the {p}.", "{x} can play the {p}.", "{x}'s instrument is the {p}.", "{x} has learnt to play"
              " the {p}.", "The {p} is played by {x}.", "The {p} is {x}'s instrument."),
             ("Which instrument does {x} play?", "What does {x} play?", "What instrument does {x} play?",
              "What is {x}'s instrument?", "What is the instrument of {x}?", "What can {x} play?"),
             ("Who plays the {p}?", "Who can play the {p}?", "Whose instrument is the {p}?")),
    )),
    Relation("age", "age", (
        Form(("{x} is {p} years old.", "{x} is {p}.", "{x} has turned {p}.", "{x}'s age is {p}.",
              "The age of {x} is {p}."),
             ("How old is {x}?", "What is {x}'s age?", "What is the age of {x}?", "What age is {x}?"),
             ("Who is {p} years old?", "Who is {p}?", "Whose age is {p}?", "Who has turned {p}?")),
    )),
    Relation("language", "language", (
        Form(("{x} speaks {p}.", "{x} can speak {p}.", "{x} is fluent in {p}.", "{x}'s mother tongue is {p}.",
              "{p} is spoken by {x}.", "{p} is {x}'s mother tongue."),
             ("Which language does {x} speak?", "What does {x} speak?", "What is {x}'s mother tongue?",
              "What language can {x} speak?"),
             ("Who speaks {p}?", "Who can speak {p}?", "Who is fluent in {p}?", "Whose mother tongue is {p}?")),
    )),
    Relation("vehicle", "vehicle", (
        Form(("{x} drives {a}.", "{x} drives the {p}.", "{x}'s car is {a}.", "{x} goes to work in {a}.",
              "The {p} is driven by {x}.", "The {p} is {x}'s car."),
             ("What does {x} drive?", "Which vehicle does {x} drive?", "What is {x}'s car?",
              "Which car does {x} have?"),
             ("Who drives the {p}?", "Who drives {a}?", "Whose car is the {p}?")),
    )),
    Relation("food", "food", (
        Form(("{x} eats {p}.", "{x} likes to eat {p}.", "{x}'s favourite food is {p}.", "{x} loves {p}."),
             ("What does {x} eat?", "What is {x}'s favourite food?", "Which food does {x} like?",
              "What is the favourite food of {x}?"),
             ("Who eats {p}?", "Whose favourite food is {p}?", "Who likes to eat {p}?")),
    )),
    Relation("drink", "drink", (
        Form(("{x} drinks {p}.", "{x}'s favourite drink is {p}.", "{x} always drinks {p}.", "{x} ordered {p}."),
             ("What does {x} drink?", "What is {x}'s favourite drink?", "Which drink does {x} like?"),
             ("Who drinks {p}?", "Whose favourite drink is {p}?")),
    )),
    Relation("sport", "sport", (
        Form(("{x}'s favourite sport is {p}.", "{x} is good at {p}.", "{x}'s hobby is {p}.", "{x} does {p}.",
              "{p} is {x}'s hobby.", "{p} is the favourite sport of {x}."),
             ("What is {x}'s favourite sport?", "Which sport does {x} do?", "What is {x} good at?",
              "What is {x}'s hobby?", "What is the hobby of {x}?"),
             ("Whose favourite sport is {p}?", "Who is good at {p}?", "Whose hobby is {p}?", "Who does {p}?")),
    )),
    Relation("studies", "subject", (
        Form(("{x} studies {p}.", "{x} studied {p}.", "{x} is a student of {p}.", "{x} teaches {p}."),
             ("What does {x} study?", "Which subject does {x} study?", "What did {x} study?"),
             ("Who studies {p}?", "Who studied {p}?", "Who is a student of {p}?")),
    )),
    Relation("origin", "country", (
        Form(("{x} comes from {p}.", "{x} is from {p}.", "{x}'s home country is {p}.", "{x} was raised in {p}.",
              "{p} is {x}'s home country."),
             ("Where does {x} come from?", "Where is {x} from?", "Which country is {x} from?",
              "What is {x}'s home country?"),
             ("Who comes from {p}?", "Who is from {p}?", "Whose home country is {p}?")),
    )),
    Relation("journey", "place", (
        Form(("{x} travelled to {p}.", "{x} went to {p}.", "{x} is going to {p}.", "{x} visited {p}."),
             ("Where did {x} go?", "Where did {x} travel to?", "Which place did {x} visit?", "Where is {x} going?"),
             ("Who travelled to {p}?", "Who went to {p}?", "Who visited {p}?")),
    )),
    Relation("marriage", "person", (
        Form(("{x} is married to {p}.", "{x} married {p}.", "{x}'s partner is {p}."),
             ("Who is {x} married to?", "Who did {x} marry?", "Who is {x}'s partner?")),
    )),
    Relation("friend", "person", (
        Form(("{x} met {p}.", "{x} knows {p}.", "{x}'s best friend is {p}.", "{x}'s teacher is {p}."),
             ("Who did {x} meet?", "Who does {x} know?", "Who is {x}'s best friend?")),
    )),
    Relation("company", "brand", (
        Form(("{x} founded {p}.", "{x} runs {p}.", "{x} is the head of {p}.", "{p} was founded by {x}."),
             ("What did {x} found?", "Which company did {x} found?", "Which company does {x} run?",
              "What is {x} the head of?"),
             ("Who founded {p}?", "Who runs {p}?", "Who is the head of {p}?")),
    )),
    Relation("birthday", "date", (
        Form(("{x}'s birthday is on {p}.", "The birthday of {x} is {p}.", "{x} has a birthday on {p}.",
              "{p} is {x}'s birthday."),
             ("When is {x}'s birthday?", "When is the birthday of {x}?", "On which day is {x}'s birthday?"),
             ("Whose birthday is on {p}?", "Who has a birthday on {p}?")),
    )),
    Relation("room", "number", (
        Form(("{x} is in room {p}.", "{x}'s room is number {p}.", "The number of {x} is {p}.", "{x}'s code is {p}."),
             ("Which room is {x} in?", "What is {x}'s room number?", "What is the number of {x}?",
              "What is {x}'s number?"),
             ("Who is in room {p}?", "Whose number is {p}?")),
    )),
)  # fmt: skip

# Forms whose questions mean one of their statements only.
NARROW = frozenset({"food", "finding", "studies", "friend", "drink", "room"})


def filled(template: str, name: str, value: str) -> str:
    """Fill a template; a sentence begins with a capital, unless a name or a value in lower case begins it."""
    article = "an" if value[:1].lower() in "aeiou" else "a"
    text = template.format(x=name, p=value, a=f"{article} {value}")
    if template.startswith("{x}") and name.startswith("the "):
        text = text[0].upper() + text[1:]
    return text
