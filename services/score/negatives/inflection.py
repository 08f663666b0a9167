"""English forms of a word: plurals, verb forms, a or an, upper and lower case."""

import re
from string import capwords

# singular:plural, for irregular ones
_PLURALS = """
man:men woman:women child:children person:people foot:feet tooth:teeth goose:geese mouse:mice ox:oxen knife:knives
wife:wives life:lives leaf:leaves loaf:loaves shelf:shelves half:halves calf:calves wolf:wolves elf:elves
thief:thieves scarf:scarves hoof:hooves sheep:sheep deer:deer fish:fish moose:moose aircraft:aircraft
spacecraft:spacecraft series:series species:species salmon:salmon bison:bison potato:potatoes tomato:tomatoes
hero:heroes echo:echoes mango:mangoes buffalo:buffaloes broccoli:broccoli
"""
# verb:past:participle, for irregular ones
_VERBS = """
be:was:been bear:bore:borne beat:beat:beaten become:became:become begin:began:begun bend:bent:bent bind:bound:bound
bite:bit:bitten bleed:bled:bled blow:blew:blown break:broke:broken bring:brought:brought build:built:built
buy:bought:bought cast:cast:cast catch:caught:caught choose:chose:chosen cling:clung:clung come:came:come
cut:cut:cut deal:dealt:dealt dig:dug:dug do:did:done draw:drew:drawn drink:drank:drunk drive:drove:driven
eat:ate:eaten fall:fell:fallen feed:fed:fed feel:felt:felt fight:fought:fought find:found:found flee:fled:fled
fling:flung:flung fly:flew:flown forget:forgot:forgotten freeze:froze:frozen get:got:got give:gave:given
go:went:gone grind:ground:ground grow:grew:grown hang:hung:hung have:had:had hear:heard:heard hide:hid:hidden
hit:hit:hit hold:held:held hurt:hurt:hurt keep:kept:kept kneel:knelt:knelt know:knew:known lay:laid:laid
lead:led:led leave:left:left lend:lent:lent let:let:let lie:lay:lain light:lit:lit lose:lost:lost make:made:made
mean:meant:meant meet:met:met pay:paid:paid put:put:put quit:quit:quit read:read:read ride:rode:ridden
ring:rang:rung rise:rose:risen run:ran:run say:said:said see:saw:seen seek:sought:sought sell:sold:sold
send:sent:sent set:set:set sew:sewed:sewn shake:shook:shaken shed:shed:shed shine:shone:shone shoot:shot:shot
show:showed:shown shrink:shrank:shrunk shut:shut:shut sing:sang:sung sink:sank:sunk sit:sat:sat sleep:slept:slept
slide:slid:slid slit:slit:slit speak:spoke:spoken spend:spent:spent spin:spun:spun split:split:split
spread:spread:spread spring:sprang:sprung stand:stood:stood steal:stole:stolen stick:stuck:stuck sting:stung:stung
stride:strode:stridden strike:struck:struck string:strung:strung swear:swore:sworn sweep:swept:swept swim:swam:swum
swing:swung:swung take:took:taken teach:taught:taught tear:tore:torn tell:told:told think:thought:thought
throw:threw:thrown wake:woke:woken wear:wore:worn weave:wove:woven weep:wept:wept win:won:won wind:wound:wound
write:wrote:written thrust:thrust:thrust
"""
_IRREGULAR_PLURALS: dict[str, str] = dict(re.findall(r"(\w+):(\w+)", _PLURALS))
_IRREGULAR_VERBS: dict[str, list[str]] = {verb: forms for verb, *forms in re.findall(r"(\w+):(\w+):(\w+)", _VERBS)}
_VOWELS = "aeiou"
# verbs that double their last consonant: those that match, and longer ones with a stressed last syllable
_DOUBLING = re.compile(r"(?:^|[^aeiou])[aeiou][bdgmnprt]$")
_DOUBLING_LONG = frozenset(
    ("begin", "forget", "admit", "commit", "refer", "prefer", "control", "patrol", "propel", "equip", "unwrap")
)
_AN = re.compile(
    r"(?!u(?:n[ai][^mn]|s[aeu]|t[ei]|ku|r[ei]n)|one(?:\b|-)|once|eu|ewe)[aeiou]|(?:honest|honou?r|hour|heir)", re.I
)


def inflected(lemma: str, tag: str) -> str:
    """Inflect a dictionary form according to a Penn tag; of several words, only the one that is inflected."""
    if tag in ("NNS", "NNPS"):
        start, space, last = lemma.rpartition(" ")
        return start + space + plural(last)
    if tag in ("VBZ", "VBG", "VBD", "VBN"):
        first, space, rest = lemma.partition(" ")
        return verb_form(first, tag) + space + rest
    return lemma


def plural(noun: str) -> str:
    if noun in _IRREGULAR_PLURALS:
        return _IRREGULAR_PLURALS[noun]
    for ending in ("man", "woman", "child", "foot", "tooth"):
        if noun.endswith(ending) and len(noun) > len(ending) + 1 and noun != "human":
            return noun[: -len(ending)] + _IRREGULAR_PLURALS[ending]
    return _with_s(noun)


def _with_s(word: str) -> str:
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return f"{word}es"
    if word.endswith("y") and word[-2:-1] not in _VOWELS:
        return f"{word[:-1]}ies"
    return f"{word}s"


def verb_form(verb: str, tag: str) -> str:
    """Return the third person (VBZ), -ing (VBG), past (VBD) or participle (VBN) of a verb."""
    if tag == "VBZ":
        return {"be": "is", "have": "has", "do": "does", "go": "goes"}.get(verb) or _with_s(verb)
    if tag == "VBG":
        if verb.endswith("ie"):
            return f"{verb[:-2]}ying"
        if verb.endswith("e") and not verb.endswith(("ee", "oe", "ye")) and verb != "be":
            return f"{verb[:-1]}ing"
        return f"{_doubled(verb)}ing"
    if verb in _IRREGULAR_VERBS:
        past, participle = _IRREGULAR_VERBS[verb]
        return past if tag == "VBD" else participle
    if verb.endswith("e"):
        return f"{verb}d"
    if verb.endswith("y") and verb[-2:-1] not in _VOWELS:
        return f"{verb[:-1]}ied"
    return f"{_doubled(verb)}ed"


def _doubled(verb: str) -> str:
    is_short = sum(letter in _VOWELS for letter in verb) == 1
    doubles = (is_short and _DOUBLING.search(verb)) or verb in _DOUBLING_LONG
    return verb + verb[-1] if doubles else verb


def article(following: str, written: str) -> str:
    """Return `a` or `an` for the next word, in the case of the original article."""
    right = "an" if _AN.match(following) else "a"
    return (
        right.upper() if written.isupper() and len(written) > 1 else right.capitalize() if written[0] == "A" else right
    )


def present_form(verb: str, *, is_third_person: bool) -> str:
    """Return `sits` for `sit`, or `sit` for `sits`."""
    if is_third_person:
        return verb_form(verb, "VBZ")
    if verb.endswith("ies") and len(verb) > 4:
        return f"{verb[:-3]}y"
    return verb[:-2] if verb.endswith(("sses", "xes", "zzes", "ches", "shes", "oes")) else verb.removesuffix("s")


def cased_like(text: str, model: str) -> str:
    """Capitalise a text like another: all of it, each word, the first letter, or unchanged."""
    if len(model) > 1 and model.isupper():
        return text.upper()
    if " " in model and model.istitle():
        return capwords(text)
    return text[:1].upper() + text[1:] if model[:1].isupper() else text
