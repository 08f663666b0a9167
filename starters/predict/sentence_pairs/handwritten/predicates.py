"""Predicates of a sentence in the third person singular, such as "is asleep": their plurals, pasts and denials."""

import random
from dataclasses import dataclass
from functools import cache

from starters.predict.everyday.words import listed

_IRREGULAR = listed(
    "be was been,beat beat beaten,become became become,begin began begun,bite bit bitten,blow blew blown"
    ",break broke broken,bring brought brought,build built built,burn burned burned,buy bought bought"
    ",catch caught caught,choose chose chosen,come came come,cost cost cost,cut cut cut,dig dug dug,do did done"
    ",draw drew drawn,drink drank drunk,drive drove driven,eat ate eaten,fall fell fallen,feed fed fed,feel felt felt"
    ",fight fought fought,find found found,fly flew flown,forget forgot forgotten,forgive forgave forgiven"
    ",freeze froze frozen,get got gotten,give gave given,go went gone,grow grew grown,hang hung hung,hear heard heard"
    ",hide hid hidden,hit hit hit,hold held held,hurt hurt hurt,keep kept kept,know knew known,lay laid laid"
    ",lead led led,leave left left,lend lent lent,let let let,lie lay lain,light lit lit,lose lost lost"
    ",make made made,meet met met,pay paid paid,put put put,read read read,ride rode ridden,ring rang rung"
    ",rise rose risen,run ran run,say said said,see saw seen,sell sold sold,send sent sent,set set set"
    ",sew sewed sewn,shake shook shaken,shine shone shone,shoot shot shot,shut shut shut,sing sang sung"
    ",sink sank sunk,sit sat sat,sleep slept slept,speak spoke spoken,spend spent spent,spill spilled spilled"
    ",stand stood stood,steal stole stolen,sweep swept swept,swim swam swum,take took taken,teach taught taught"
    ",tear tore torn,tell told told,think thought thought,throw threw thrown,understand understood understood"
    ",wake woke woken,wear wore worn,win won won,wind wound wound,write wrote written,have had had"
    ",forbid forbade forbidden,wet wet wet,withdraw withdrew withdrawn"
    ",hike hiked hiked,oversleep overslept overslept,bend bent bent,shrink shrank shrunk",
    ",",
)
_REGULAR = listed(
    "accept add admire admit adopt agree allow annoy answer apologize appear apply arrest arrive ask assist attend "
    "avoid bake bathe believe belong block boil book borrow bother bow brush call camp cancel carry celebrate change "
    "charge chase chat check cheer chew chop clap clean clear climb close collect comb complain complete confess "
    "confirm contain cook copy correct count cover crash crawl cross cry dance decline decorate defend delay deliver "
    "deny describe design destroy die disappear discover dislike dive donate download drop dry earn empty end enjoy "
    "enter erase escape examine exercise exit explain fail fasten fetch fill film finish fish fix fold follow frown "
    "fry gain gather greet guess hammer happen hate help hesitate hire hop hug hurry ignore improve include increase "
    "inherit insult interrupt invent invite iron jog join joke juggle jump kick kill kiss kneel knit knock lack land "
    "last laugh lean learn lift like listen live loan lock look love mail march marry melt mend milk miss mix mow "
    "move nap need nod notice obey offer open order own pack paint park pass pause peel phone photograph pick plan "
    "plant play plow point polish post pour practice praise pray prefer prepare press print promise pull punish "
    "purchase push question quit race rain raise reach receive recognize recommend recover refuse reject relax "
    "release rely remain remember remove rent repair repeat reply require rescue resign rest retire return reveal "
    "review rob roll row rush sail save scare scold scratch scream serve share shave shop shout shovel sign ski "
    "skip slice slip smell smile smoke sneeze snore snow start starve stay step stir stop store study subtract "
    "succeed suffer surf survive swallow talk taste tie touch travel trim trip trust try turn type unlock unpack "
    "untie unwrap use vacuum visit vote wait walk want warm wash waste watch water wave weigh whisper wipe wish work "
    "worry wrap yawn yell switch fire accuse protect attack damage hand order cool welcome rinse lower mention "
    "whistle seat mistrust exhale delete board unload load dress reward undress disagree warn heat score rake thank "
    "solve inhale dirty mess splash train injure refuel manage pretend hope owe expect found act fit unfold contact"
)
_DOUBLED = frozenset(
    listed(
        "admit fit wet forbid unwrap chat chop clap drop hop hug jog nap nod plan prefer quit rob shop "
        "skip slip step stop trim trip wrap "
        "begin cut dig forget get hit let put run set shut sit swim win"
    )
)
AUXILIARIES = frozenset(listed("is was are were can will must could should would"))
_PLURALS = {"is": "are", "was": "were", "has": "have", "does": "do", "isn't": "aren't", "wasn't": "weren't"}
_PLURALS |= {"doesn't": "don't", "hasn't": "haven't"}
_ADVERBS = frozenset(listed("still already no longer seldom often once always rarely never just usually sometimes"))
_SHORT = {"is": "isn't", "was": "wasn't", "are": "aren't", "were": "weren't", "can": "can't", "will": "won't"}
_PERFECT = frozenset(listed("been just already never finally not"))


@dataclass(frozen=True)
class Forms:
    """The forms of a verb."""

    base: str
    third: str
    past: str
    participle: str
    progressive: str


def _regular(base: str) -> tuple[str, str]:
    if base.endswith("e"):
        return f"{base}d", f"{base}d"
    if base.endswith("y") and base[-2] not in "aeiou":
        return f"{base[:-1]}ied", f"{base[:-1]}ied"
    stem = base + base[-1] if base in _DOUBLED else base
    return f"{stem}ed", f"{stem}ed"


def _third(base: str) -> str:
    if base in ("have", "be"):
        return {"have": "has", "be": "is"}[base]
    if base.endswith(("s", "x", "z", "ch", "sh", "o")):
        return f"{base}es"
    return f"{base[:-1]}ies" if base.endswith("y") and base[-2] not in "aeiou" else f"{base}s"


def _progressive(base: str) -> str:
    if base.endswith("ie"):
        return f"{base[:-2]}ying"
    if base.endswith("e") and not base.endswith(("ee", "ye")) and base != "be":
        return f"{base[:-1]}ing"
    return f"{base}{base[-1]}ing" if base in _DOUBLED else f"{base}ing"


@cache
def _verbs() -> dict[str, Forms]:
    found = {}
    for line in _IRREGULAR:
        base, past, participle = line.split(" ")
        found[base] = Forms(base, _third(base), past, participle, _progressive(base))
    for base in _REGULAR:
        found[base] = Forms(base, _third(base), *_regular(base), _progressive(base))
    return found


@cache
def _by_third() -> dict[str, Forms]:
    return {forms.third: forms for forms in _verbs().values()}


@cache
def _by_past() -> dict[str, Forms]:
    return {forms.past: forms for forms in _verbs().values()}


@cache
def _participles() -> frozenset[str]:
    return frozenset(forms.participle for forms in _verbs().values())


def conjugated(phrase: str, form: str) -> str:
    """Put the first word of a phrase, a verb's base form, in another of Forms. Raises KeyError for another verb."""
    verb, _, rest = phrase.partition(" ")
    return f"{getattr(_verbs()[verb], form)} {rest}".strip()


def plural(predicate: str) -> str:
    """Put a predicate in the plural."""
    verb, _, rest = predicate.partition(" ")
    if verb in _ADVERBS and rest:
        return f"{verb} {plural(rest)}"
    if verb in _by_third() and verb not in _PLURALS:
        return f"{_by_third()[verb].base} {rest}".strip()
    return f"{_PLURALS.get(verb, verb)} {rest}".strip()


def past(predicate: str) -> str:
    """Put a predicate that begins with "is" or "are" in the past; others are returned unchanged."""
    verb, _, rest = predicate.partition(" ")
    return f"{ {'is': 'was', 'are': 'were'}.get(verb, verb) } {rest}".strip()


def denied(predicate: str, generator: random.Random) -> str | None:
    """Deny a predicate; None if it cannot be told how."""
    verb, _, rest = predicate.partition(" ")
    second = rest.partition(" ")[0]
    if second in ("not", "never", "no", "nothing", "nobody", "only") or " no " in predicate or verb == "never":
        return None
    for word in ("already ", "just ", "still "):
        rest = rest.replace(word, "", 1) if rest.startswith(word) else rest
    rest = rest.replace("some ", "any ").replace("something", "anything").replace("somebody", "anybody")
    if verb in AUXILIARIES:
        return f"{_SHORT[verb]} {rest}" if verb in _SHORT and generator.random() < 0.35 else f"{verb} not {rest}"
    is_short = generator.random() < 0.5
    if verb in ("has", "have") and (second in _PERFECT or second in _participles()):
        return f"{verb}{'n’t' if is_short else ' not'} {rest}".replace("’", "'")
    if verb in _by_third():
        return f"{'doesn’t' if is_short else 'does not'} {_by_third()[verb].base} {rest}".strip().replace("’", "'")
    if verb == "have":
        return f"do not have {rest}"
    if verb in _by_past():
        return f"{'didn’t' if is_short else 'did not'} {_by_past()[verb].base} {rest}".strip().replace("’", "'")
    return None
