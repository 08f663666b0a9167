"""Claims about people and their relations, denials, amounts of a whole, and the same said in other words."""

import random
from collections.abc import Mapping

from services.predict.data.everyday.claims import Claim, is_unclear, person, with_article
from services.predict.data.everyday.taxonomies import Relation, quality_groups, taxonomy
from services.predict.data.everyday.words import MEN, PEOPLES, THINGS, WOMEN

# Relations of a first person to a second, with the genders of both: the converse, and wider words.
KIN: Mapping[str, tuple[str, str, str, str, str]] = {
    # name: genders, converse for a son or brother, converse for a daughter or sister, wider word, excluded ones
    "mother": ("f", "son", "daughter", "parent", "father,sister,daughter,aunt,son"),
    "father": ("m", "son", "daughter", "parent", "mother,brother,son,uncle,daughter"),
    "son": ("m", "father", "mother", "child", "daughter,father,brother,uncle"),
    "daughter": ("f", "father", "mother", "child", "son,mother,sister,aunt"),
    "brother": ("m", "brother", "sister", "sibling", "sister,father,son,uncle"),
    "sister": ("f", "brother", "sister", "sibling", "brother,mother,daughter,aunt"),
    "grandmother": ("f", "grandson", "granddaughter", "grandparent", "grandfather,sister,mother,granddaughter"),
    "grandfather": ("m", "grandson", "granddaughter", "grandparent", "grandmother,brother,father,grandson"),
    "uncle": ("m", "nephew", "niece", "relative", "aunt,father,brother,nephew"),
    "aunt": ("f", "nephew", "niece", "relative", "uncle,mother,sister,niece"),
    "wife": ("f", "husband", "husband", "spouse", "sister,mother,daughter"),
    "husband": ("m", "wife", "wife", "spouse", "brother,father,son"),
}
# Relations between any two people: the converse, and what a converse relation excludes.
ROLES: Mapping[str, str] = {
    "boss": "employee",
    "employee": "boss",
    "teacher": "student",
    "student": "teacher",
    "doctor": "patient",
    "patient": "doctor",
    "friend": "friend",
    "neighbor": "neighbor",
    "colleague": "colleague",
    "cousin": "cousin",
    "classmate": "classmate",
    "guest": "host",
    "host": "guest",
    "trainer": "trainee",
    "landlord": "tenant",
    "tenant": "landlord",
}
# Verbs between two people: told, the converse, and what both exclude.
DEALS = (
    ("{a} sold {x} to {b}", "{b} bought {x} from {a}", "{b} sold {x} to {a}"),
    ("{a} gave {b} {x}", "{b} [got|received] {x} from {a}", "{b} gave {a} {x}"),
    ("{a} lent {b} {x}", "{b} borrowed {x} from {a}", "{a} borrowed {x} from {b}"),
    ("{a} sent {x} to {b}", "{b} received {x} from {a}", "{b} sent {x} to {a}"),
    ("{a} beat {b} at chess", "{b} lost to {a} at chess", "{b} [beat {a} at chess|won against {a}]"),
    ("{a} won against {b}", "{b} lost against {a}", "{b} won against {a}"),
    ("{a} teaches {b}", "{b} is taught by {a}", "{b} teaches {a}"),
    ("{a} works for {b}", "{b} is {a}'s [boss|employer]", "{a} is {b}'s boss"),
    ("{a} is married to {b}", "{b} is married to {a}", "{a} is [single|not married]"),
    ("{a} met {b}", "{b} met {a}", "{a} [never met|has never seen] {b}"),
    ("{a} follows {b}", "{b} is followed by {a}", "{a} does not follow {b}"),
    ("{a} and {b} are twins", "{a} and {b} are the same age", "{a} is older than {b}"),
    ("{a} lives with {b}", "{b} lives with {a}", "{a} lives alone"),
    ("{a} and {b} are [sisters|brothers|cousins]", "{a} and {b} are relatives", "{a} and {b} are not related"),
    ("{a} is an only child", "{a} has no [brothers|sisters|siblings]", "{a} has a [brother|sister]"),
    ("{a} is an orphan", "{a}'s parents are dead", "{a} lives with {her} parents"),
    ("{a} and {b} have three children", "{a} and {b} are parents", "{a} [has no children|is childless]"),
    ("{a} is pregnant", "{a} is expecting a baby", "{a} is not expecting a baby"),
)
_OPEN = (
    "{a} likes {b}",
    "{a} lives near {b}",
    "{a} is tall",
    "{b} is rich",
    "{a} and {b} went to the cinema",
    "{b} has a dog",
    "{a} is tired",
)


def _other(template: str, generator: random.Random) -> str:
    before, bracket, rest = template.partition("[")
    if not bracket:
        return template
    inner, _, after = rest.partition("]")
    return f"{before}{generator.choice(inner.split('|'))}{_other(after, generator)}"


def draw_relation(label: Relation, generator: random.Random) -> Claim | None:
    """Draw how two people are related, or what one did with the other."""
    way = generator.random()
    if way < 0.5:
        return _draw_kin(label, generator)
    one, two = generator.sample(WOMEN + MEN, 2)
    names = {
        "a": one,
        "b": two,
        "x": with_article(generator.choice(THINGS)[1]),
        "her": "her" if one in WOMEN else "his",
    }
    if label == "neutral" and generator.random() < 0.6:
        told = generator.choice([role for role in ROLES]) if generator.random() < 0.5 else ""
        premise = f"{one} is {two}'s {told}" if told else _other(generator.choice(DEALS)[0], generator).format(**names)
        return Claim(premise, generator.choice(_OPEN).format(**names), label, "that is not told")
    if way < 0.7:
        role = generator.choice(tuple(ROLES))
        back = ROLES[role]
        if label == "entailment":
            return Claim(f"{one} is {two}'s {role}", f"{two} is {one}'s {back}", label, f"a {role} has a {back}")
        if label == "contradiction":
            said = (
                f"{two} is not {one}'s {back}"
                if back == role or generator.random() < 0.4
                else f"{two} is {one}'s {role}"
            )
            return Claim(f"{one} is {two}'s {role}", said, label, f"a {role} has a {back}")
        return None
    told, converse, excluded = (_other(text, generator).format(**names) for text in generator.choice(DEALS))
    if label == "neutral":
        return None
    if label == "entailment" and generator.random() < 0.3 and converse != told:
        told, converse = converse, told
    return Claim(told, converse if label == "entailment" else excluded, label, f"so {converse}")


def _draw_kin(label: Relation, generator: random.Random) -> Claim | None:
    """Draw a family relation, its converse, a wider word, the gender, or another relation."""
    kin = generator.choice(tuple(KIN))
    gender, for_man, for_woman, wider, excluded = KIN[kin]
    one = generator.choice(WOMEN if gender == "f" else MEN)
    two = generator.choice([name for name in WOMEN + MEN if name != one])
    if kin in ("wife", "husband"):
        two = generator.choice(MEN if kin == "wife" else WOMEN)
    back = for_man if two in MEN else for_woman
    told = generator.choice(
        (
            f"{one} is {two}'s {kin}",
            f"{one} is the {kin} of {two}",
            f"{two}'s {kin} is {one}",
            f"{two}'s {kin} is called {one}",
        )
    )
    elders = ("mother", "father", "grandmother", "grandfather")
    true = [
        f"{two} is {one}'s {back}",
        f"{one} is {two}'s {wider}",
        f"{one} is a {'woman' if gender == 'f' else 'man'}",
        f"{one} and {two} are [related|family]",
    ]
    false = [f"{one} is {two}'s {word}" for word in excluded.split(",")]
    false += [
        f"{one} is a {'man' if gender == 'f' else 'woman'}",
        f"{two} is {one}'s {kin}" if kin not in ("brother", "sister") else f"{two} has no siblings",
    ]
    if kin in elders:
        true += [f"{one} is older than {two}", f"{one} has a child", f"{one} has children"]
        false += [f"{one} is younger than {two}", f"{one} has no children"]
    if kin in ("wife", "husband"):
        true += [f"{one} is married", f"{two} is married", f"{one} and {two} are married"]
        false += [f"{one} is single", f"{two} is not married", f"{one} and {two} are not married"]
    if kin in ("brother", "sister"):
        true += [f"{two} has a {kin}", f"{one} and {two} have the same parents"]
        false += [f"{two} is an only child", f"{one} is an only child"]
    open_ = [
        *(one_.format(a=one, b=two) for one_ in _OPEN),
        f"{two} has two {kin}s",
        f"{one} is {two}'s teacher",
        f"{one} lives with {two}",
    ]
    if kin not in elders:
        open_ += [f"{one} is older than {two}"] if kin not in ("son", "daughter") else []
    said = generator.choice({"entailment": true, "contradiction": false, "neutral": open_}[label])
    return Claim(told, _other(said, generator), label, f"{one} is the {kin} of {two}")


# Pairs of a sentence and its denial, with words of open classes.
_DENIED = (
    ("{s} can {can}", "{s} [cannot|can't|is unable to] {can}"),
    ("{s} likes {things}", "{s} [does not like|doesn't like|hates] {things}"),
    ("{s} [has a|owns a] {thing}", "{s} [does not have|doesn't have|does not own] a {thing}"),
    ("there is [some|] {stuff} in the fridge", "there is no {stuff} in the fridge"),
    ("there [is a|is one] {thing} on the table", "there is no {thing} on the table"),
    ("there are {things} in the box", "there are no {things} in the box"),
    ("[somebody|someone] is in the house", "[nobody|no one] is in the house"),
    ("something is in the box", "[nothing is in the box|the box is empty]"),
    (
        "[everybody|everyone|all the guests] came to the party",
        "[nobody|no one|not everyone|none of the guests] came to the party",
    ),
    ("{s} [drinks|takes] coffee with {stuff}", "{s} [drinks|takes] coffee without {stuff}"),
    ("{s} {did} the {thing}", "{s} did not {do} the {thing}"),
    ("{s} {did} the {thing}", "{s} never {did} the {thing}"),
    ("{s} will come [tomorrow|to the party|today]", "{s} [will not|won't] come [tomorrow|to the party|today]"),
    ("{s} is {q}", "{s} is not {q}"),
    ("{s} was {q}", "{s} [was not|wasn't] {q}"),
    ("the {thing} works", "the {thing} [does not work|doesn't work|is broken]"),
    ("{s} eats meat", "{s} [is a vegetarian|does not eat meat|never eats meat]"),
    ("{s} speaks {tongue}", "{s} [does not|doesn't] speak {tongue}"),
    ("{s} knows the answer", "{s} [does not know|doesn't know] the answer"),
    ("{s} smokes", "{s} [does not smoke|doesn't smoke|has stopped smoking|never smokes]"),
    ("it is raining", "[it is not raining|it isn't raining|it is dry outside]"),
    ("{s} is [at home|here|in town]", "{s} is not [at home|here|in town]"),
    ("the door is locked", "the door is [not locked|unlocked]"),
    ("{s} passed the exam", "{s} [failed the exam|did not pass the exam]"),
    ("{s} [remembered|managed] to {do} the {thing}", "{s} [forgot|failed] to {do} the {thing}"),
    ("{s} agreed to {do} the {thing}", "{s} refused to {do} the {thing}"),
    ("{s} has finished the {thing}", "{s} has not finished the {thing}"),
    ("it is true that {s} is {q}", "it is not true that {s} is {q}"),
)
_VERBS = (
    "buy bought,sell sold,find found,lose lost,see saw,break broke,repair repaired,open opened,close closed,clean cleaned,take took,hide hid,steal stole,paint painted,carry carried,bring brought,throw threw,wash washed"
).split(",")
_CAN = "swim,dance,drive a car,play the piano,speak French,cook,ride a bike,read,ski,sing,fly a plane,run fast,paint".split(
    ","
)
_STUFF = "milk,sugar,butter,water,cheese,bread,juice,honey,rice,beer,cream,ham".split(",")
_TONGUES = "French,German,Spanish,Italian,English,Chinese,Russian,Arabic,Japanese".split(",")


def _spoken(generator: random.Random) -> dict[str, str]:
    verb, past = generator.choice(_VERBS).split(" ")
    things, thing = generator.choice(THINGS)
    quality = generator.choice(generator.choice(quality_groups("person")).words)
    return {
        **{"s": person(generator)[1], "things": things, "thing": thing, "do": verb, "did": past, "q": quality},
        **{"can": generator.choice(_CAN), "stuff": generator.choice(_STUFF), "tongue": generator.choice(_TONGUES)},
    }


def draw_denial(label: Relation, generator: random.Random) -> Claim | None:
    """Draw a sentence and its denial, the denial twice in other words, or a denial that leaves the hypothesis open."""
    words = _spoken(generator)
    templates = generator.choice(_DENIED)
    plain, denial = (_other(text, generator).format(**words) for text in templates)
    if label == "contradiction":
        pair = (plain, denial) if generator.random() < 0.5 else (denial, plain)
        if templates[0].startswith("[everybody") and pair[0] == plain and "came" not in pair[1]:
            return None
        return Claim(*pair, label, f"that {plain} is denied")
    if label == "entailment":
        which = generator.randrange(2)
        again = _other(templates[which], generator).format(**words)
        first = (plain, denial)[which]
        if "guests" in first + again or "everyone" in first + again or (first == again and generator.random() < 0.6):
            return None
        return Claim(first, again, label, "it says the same")
    other_words = {**_spoken(generator), "s": words["s"] if generator.random() < 0.7 else _spoken(generator)["s"]}
    others = [pair for pair in _DENIED if pair is not templates]
    said = _other(generator.choice(generator.choice(others)), generator).format(**other_words)
    return Claim(generator.choice((plain, denial)), said, label, "that is not told")


_PARTS = (
    "are happy",
    "passed the test",
    "are wearing hats",
    "can swim",
    "came by bus",
    "like pizza",
    "are in the garden",
    "are asleep",
    "speak French",
    "won a prize",
)
_ALL = ("all {p}", "every one of the {p}", "all of the {p}")
_SOME = ("some {p}", "some of the {p}", "a few {p}", "several {p}")
_NONE = ("no {p}", "none of the {p}")
_MOST = ("most {p}", "most of the {p}", "many {p}")


def draw_share(label: Relation, generator: random.Random) -> Claim | None:
    """Draw a part of a whole: all, most, some or none."""
    (peoples, _), part = generator.choice(PEOPLES), generator.choice(_PARTS)
    said_part = generator.choice([one for one in _PARTS if one != part])
    pairs = {
        "entailment": ((_ALL, _SOME), (_ALL, _MOST), (_MOST, _SOME), (_ALL, _ALL), (_NONE, _NONE), (_SOME, _SOME)),
        "contradiction": ((_ALL, _NONE), (_NONE, _ALL), (_NONE, _SOME), (_SOME, _NONE), (_NONE, _MOST), (_MOST, _NONE)),
        "neutral": ((_SOME, _ALL), (_SOME, _MOST), (_MOST, _ALL)),
    }
    told, said = (
        generator.choice(some).format(p=f"the {peoples}" if False else peoples)
        for some in generator.choice(pairs[label])
    )
    if label == "neutral" and generator.random() < 0.4:
        return Claim(f"{told} {part}", f"{said} {said_part}", label, "that is not told")
    if label == "contradiction" and told.startswith("all") and generator.random() < 0.3:
        said = f"not all {peoples}"
    return Claim(f"{told} {part}", f"{said} {part}", label, f"{told} is compared with {said}")


# Sentences about a first and a second thing; each in the active and the passive voice.
_PASSIVES = (
    ("chased", "chased"),
    ("saw", "seen"),
    ("followed", "followed"),
    ("pushed", "pushed"),
    ("helped", "helped"),
    ("carried", "carried"),
    ("painted", "painted"),
    ("called", "called"),
    ("invited", "invited"),
    ("found", "found"),
    ("caught", "caught"),
    ("bit", "bitten"),
    ("wrote", "written"),
    ("built", "built"),
    ("repaired", "repaired"),
    ("ate", "eaten"),
    ("broke", "broken"),
    ("washed", "washed"),
    ("bought", "bought"),
    ("stole", "stolen"),
    ("cooked", "cooked"),
    ("cleaned", "cleaned"),
    ("took", "taken"),
    ("kissed", "kissed"),
)
_SAME = (
    ("{s} bought {x}", "{s} purchased {x}"),
    ("{s} began to {do}", "{s} started {doing}"),
    ("{s} is {doing}", "{s} {does}"),
    ("{s} phoned {o}", "{s} called {o}"),
    ("{s} is unable to {do}", "{s} cannot {do}"),
    ("{s} talked to {o}", "{s} spoke with {o}"),
    ("{s} is fond of {o}", "{s} likes {o}"),
    ("{s} assisted {o}", "{s} helped {o}"),
    ("{s} is at home", "{s} is in the house"),
    ("{s} is the owner of {x}", "{x} belongs to {s}"),
    ("{s} owns {x}", "{s} has {x}"),
    ("{s} repaired {x}", "{s} fixed {x}"),
    ("{s} is the only one who {does}", "nobody else {does}"),
    ("{s} got up early", "{s} got out of bed early"),
    ("{s} arrived late", "{s} was not on time"),
    ("{s} moved from London to Paris", "{s} lives in Paris now"),
    ("{s} came home from work", "{s} is back from work"),
    ("{s} needs {x}", "{s} requires {x}"),
    ("{s} is quick", "{s} is fast"),
)
_DOING = (
    "run running runs",
    "sing singing sings",
    "sleep sleeping sleeps",
    "cook cooking cooks",
    "swim swimming swims",
    "dance dancing dances",
    "work working works",
)


def draw_paraphrase(label: Relation, generator: random.Random) -> Claim | None:
    """Draw the same in other words, with something left out, exchanged or added."""
    if generator.random() < 0.55:
        return _draw_details(label, generator)
    (one, _), two = person(generator), generator.choice(WOMEN + MEN)
    one = one.replace("a ", "the ", 1) if one.startswith("a ") else one
    thing = f"the {generator.choice(THINGS)[1]}"
    do, doing, does = generator.choice(_DOING).split(" ")
    if generator.random() < 0.5:
        verb, passive = generator.choice(_PASSIVES)
        whom = (
            two
            if verb in ("chased", "saw", "followed", "pushed", "helped", "called", "invited", "caught", "bit", "kissed")
            else thing
        )
        active, passive_text = f"{one} {verb} {whom}", f"{whom} was {passive} by {one}"
        told, same = (active, passive_text) if generator.random() < 0.7 else (passive_text, active)
        if label == "entailment":
            return Claim(told, same if generator.random() < 0.8 else f"{whom} was {passive}", label, "it says the same")
        if label == "contradiction":
            return Claim(
                told,
                same.replace(f"{whom} was ", f"{whom} was not ")
                if " was " in same
                else f"{whom} was not {passive} by {one}",
                label,
                "it is denied",
            )
        verb2 = generator.choice([one_ for one_ in _PASSIVES if one_[0] != verb])
        return Claim(told, f"{one} {verb2[0]} {whom}", label, "that is not told")
    first, second = (
        text.format(s=one, o=two, x=thing, do=do, doing=doing, does=does) for text in generator.choice(_SAME)
    )
    if label == "entailment":
        return Claim(
            *((first, second) if generator.random() < 0.5 or "moved" in first else (second, first)),
            label,
            "it says the same",
        )
    if label == "neutral":
        other = generator.choice(_SAME)[generator.randrange(2)].format(
            s=one, o=two, x=thing, do=do, doing=doing, does=does
        )
        return None if other in (first, second) else Claim(first, other, label, "that is not told")
    return Claim(first, f"it is not true that {second}", label, "it is denied")


def _draw_details(label: Relation, generator: random.Random) -> Claim | None:
    """Draw a sentence with person, clothes, action, place and time, and one with a part of it left out or changed."""
    people, activities, places, hours = (taxonomy(name) for name in ("people", "activities", "places", "hours"))
    who, doing, place, hour = (generator.choice(words.words) for words in (people, activities, places, hours))
    color = generator.choice("red blue green white black yellow brown".split())
    cloth = generator.choice("shirt hat coat dress jacket sweater scarf".split())
    number = generator.choice(("", "", "", "young ", "old ", "tall "))
    has_place, has_cloth, has_hour = generator.random() < 0.7, generator.random() < 0.4, generator.random() < 0.3
    dressed = f" in {with_article(f'{color} {cloth}')}" if has_cloth else ""
    where, when = f" {place}" if has_place else "", f" {hour}" if has_hour else ""
    told = f"{with_article(number + who)}{dressed} is {doing}{where}{when}"
    parts: list[tuple[Relation, str, str]] = []
    for _ in range(3):
        said = generator.choice(
            (doing, *activities.wider[doing], *activities.narrower[doing], generator.choice(activities.words))
        )
        if not is_unclear(doing, said) or activities.relation(doing, said) != "contradiction":
            parts.append((activities.relation(doing, said), f"{{S}} is {said}", f"{doing} and {said}"))
        said = generator.choice((who, *people.wider[who], *people.narrower[who], generator.choice(people.words)))
        parts.append((people.relation(who, said), f"{with_article(said)} is {doing}", f"{who} and {said}"))
        said = generator.choice((place, *places.wider[place], *places.narrower[place], generator.choice(places.words)))
        parts.append(
            (places.relation(place, said) if has_place else "neutral", f"{{S}} is {said}", f"{place} and {said}")
        )
        said = generator.choice("red blue green white black yellow brown".split() + [color] * 4)
        wears: Relation = ("entailment" if said == color else "contradiction") if has_cloth else "neutral"
        parts.append((wears, f"{{S}} is wearing {with_article(f'{said} {cloth}')}", f"{color} and {said}"))
        parts.append(
            (
                "neutral",
                f"{{S}} is {generator.choice(('tired', 'happy', 'with a friend', 'late', 'rich', 'waiting for a friend'))}",
                "more than is told",
            )
        )
    parts.append(("entailment", f"there is {with_article(who)}{where}", "something left out"))
    parts.append(("contradiction", f"{{S}} is not {doing}", "a denial"))
    parts.append(("contradiction", f"nobody is {doing}", "a denial"))
    fitting = [part for part in parts if part[0] == label]
    if not fitting:
        return None
    _, hypothesis, compared = generator.choice(fitting)
    return Claim(
        told,
        hypothesis.replace("{S}", f"the {who}"),
        label,
        f"the two differ in {compared}" if label != "entailment" else f"{compared} agree",
    )
