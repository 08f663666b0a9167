"""Numbers as people write them: their values, and what looks like a number but is not read.

Digits of any script are read. Where both a point and a comma stand in a number, the later one is the decimal one;
several of one kind, or one comma before exactly three digits, group thousands; any other comma, and any other point, is
decimal. A space or an apostrophe before three digits groups thousands too. Fractions (1/2, ½, 1½, "two and a half",
"half a", "three quarters of a"), percentages, negative numbers and English number words are numbers as well.

Parts ("a third of them") stay words, and a number within a name ("B12") or "one" as a pronoun ("each one") is none.
Dates, times, ordinals but "first" and "second", powers and numerals without digits are not read.
"""

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

SLOTS = "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳"
RESULTS = "❶❷❸❹❺❻❼❽❾❿"

_UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_POWERS = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_VALUES = {word: value for value, word in enumerate(_UNITS)} | {
    word: 10 * value for value, word in enumerate(_TENS, start=2)
}
_ORDINALS = ("third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_PARTS = {"half": 2, "quarter": 4} | {word: value for value, word in enumerate(_ORDINALS, start=3)}

_TO_19 = "|".join(sorted(_UNITS, key=len, reverse=True))
_TO_99 = rf"(?:(?:{'|'.join(_TENS)})(?:[ -](?:{'|'.join(_UNITS[1:10])})\b)?|{_TO_19})"
_TO_999 = rf"(?:(?:{_TO_99}|a) hundred(?: (?:and )?{_TO_99}\b)?|{_TO_99})"
_WORDS = rf"(?:(?:{_TO_999}|a) (?:thousand|million|billion)(?:,? (?:and )?{_TO_999}\b)?|{_TO_999})"
_PART = rf"(?:{'|'.join(_PARTS)})s?\b"
_MEASURE = (
    r"(?:cup|hour|minute|day|week|month|year|mile|(?:kilo)?met(?:er|re)|inch|foot|yard|lit(?:er|re)|pint|quart|gallon"
    r"|(?:tea|table)spoon|pound|ounce|kilo(?:gram)?|gram|ton|dollar|euro)s?\b"
)
_SOME_PARTS = rf"(?:an?|{'|'.join(_UNITS[1:10])})[ -]{_PART}"
# Beyond this length a number has no value that is a float.
_DIGITS, _DECIMALS = "[0-9]{1,300}", "[0-9]{1,300}(?![0-9])"
_FEW = "[1-9][0-9]{0,2}"
_FORMS = (
    rf"{_FEW}(?:,[0-9]{{3}}){{1,99}}(?:\.{_DECIMALS})?(?!,?[0-9])",  # 1,200.5
    rf"[0-9]{{1,2}}(?:,[0-9]{{2}}){{1,99}},[0-9]{{3}}(?:\.{_DECIMALS})?(?!,?[0-9])",  # 1,20,000, as in India
    rf"{_FEW}(?:(?: [0-9]{{3}}){{1,99}}|(?:'[0-9]{{3}}){{1,99}})(?:[.,]{_DECIMALS})?(?! ?[0-9]|-[a-z])",  # 1 200,5
    rf"{_FEW}(?:(?:\.[0-9]{{3}}){{1,99}},{_DECIMALS}|(?:\.[0-9]{{3}}){{2,99}}(?![.,]?[0-9]))",  # 1.200,5
    rf"(?<![0-9],){_DIGITS},{_DECIMALS}(?!,[0-9])",  # 2,5 but not 2,5,7
    rf"(?:{_DIGITS})?\.{_DECIMALS}|{_DIGITS}(?![0-9])",
)
_NUMBER = re.compile(
    rf"(?P<signs>[{SLOTS}{RESULTS}])"
    rf"|\b(?P<some>half|an? (?:half|quarter)|{_SOME_PARTS}(?= of))(?: of)?(?: an?)?(?= {_MEASURE})"
    r"|(?P<minus>(?<![^\s($€£])-)?(?<![\w.])(?:"
    r"(?:(?P<whole>[0-9]{1,9})[ -](?=[0-9]{1,9}/))?(?P<above>[0-9]{1,9})/(?P<below>[1-9][0-9]{0,8})(?![\w/])"
    r"|(?:(?P<before>[0-9]{1,9}) ?)?(?P<vulgar>[¼½¾⅐-⅞↉])"
    rf"|(?P<digits>{'|'.join(_FORMS)})(?: (?P<power>thousand|million|billion)\b)?"
    rf"|(?P<words>{_WORDS})\b(?!-(?!{_PART}|year|day|hour|minute|week|month|mile|foot|page|dollar|pound))"
    rf")(?: and (?P<and>{_SOME_PARTS}))?(?P<joint>-(?={_PART}))?(?P<percent> ?%(?! ?[0-9(])|[ -](?:per ?cent|pct)\b)?",
    re.IGNORECASE,
)
_SHARE = re.compile(
    r"(?<![\w./])(?<![0-9][ -])(?P<by>(?<=\bby ))?(?:(?P<above>[1-9])[/⁄](?P<below>[2-9]|10)|(?P<vulgar>[¼½¾⅐-⅞]))"
    rf"(?(by)(?= of\b|[.,;!?]|$)|(?= of\b))(?! of an? {_MEASURE})"
)
_UNREAD = re.compile(
    r"(?<![\w.])(?:"
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{1,2}/[0-9]{1,2}/(?:[0-9]{4}|[0-9]{2})\b|[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{1,30}"
    r"|[0-9]{1,2}:[0-5][0-9](?::[0-5][0-9])?"  # times
    r"|[0-9](?:[0-9.,]{0,30}[0-9])?(?:st|nd|rd|th|k)\b|[0-9.]{1,30}(?:[ex^_][0-9]\w*|[⁰¹²³⁴-⁹]+)"
    r"|[0-9.,]{1,30} ?‰|[0-9]{1,30}/0{1,30}\b|[0-9]{301,}"
    r")|[\u2160-\u2188\u2474-\u249b\u24ea-\u24ff\u2780-\u2793\u3220-\u3229\u3248-\u325f\u3280-\u3289\u32b1-\u32bf]+"
    r"|[〇一二三四五六七八九十百千万億]+|\b(?-i:(?=[IVX]{2})X{0,3}(?:IX|IV|V?I{0,3}))\b"
    rf"|\b(?:(?:{'|'.join(_TENS)})-(?:first|second|{'|'.join(_ORDINALS)})"
    rf"|(?<!\ba )(?<!\ban )(?<!\bone )(?<!\w-)(?:{'|'.join(_ORDINALS)}|\w+teenth|\w+tieth|eleventh|twelfth))\b",
    re.IGNORECASE,
)
_GROUPED = re.compile(rf"(?:{_FEW}(,[0-9]{{3}})+|[0-9]{{1,2}}(,[0-9]{{2}})+,[0-9]{{3}})(\.[0-9]+)?")
# "one" after these is a pronoun.
_NOT_NUMBERS = re.compile(
    r"(?:the|each|every|any|no|this|that|which|another|last|first|next|some|only)(?: (?:\w+))? $", re.IGNORECASE
)
# Characters that people write in place of these; a full-width comma groups, but separates no decimals.
_ALIKE = {
    **dict.fromkeys("\u00a0\u2007\u2008\u2009\u202f", " "),
    **dict.fromkeys("⁄∕／", "/"),
    **dict.fromkeys("−﹣－", "-"),
    **dict.fromkeys("％﹪٪", "%"),
    **dict.fromkeys("’٬，", "'"),
    **dict.fromkeys("٫．", "."),
}


class Number(NamedTuple):
    """A number of a text: its `value`, as the text writes it, and as an equation writes it.

    The value of a percentage is the number before its sign.
    """

    value: Fraction
    written: str
    equation: str
    is_percentage: bool = False

    @property
    def may_be_pronoun(self) -> bool:
        return self.written.lower() == "one"


class Found(NamedTuple):
    """A number from `start` to `end` of a text, which `after` follows once a sign replaces it."""

    start: int
    end: int
    number: Number
    after: str


def find_numbers(text: str) -> tuple[list[Found], list[str]]:
    """Find the numbers of a text, and those that are not read, as it writes them.

    A sign of a slot that somebody typed is the number that it shows.
    """
    unread: list[str] = []

    def leave_out(found: re.Match[str]) -> str:
        unread.append(text[found.start() : found.end()])
        return "\0" * len(found[0])

    alike = _UNREAD.sub(leave_out, text if text.isascii() else "".join(map(_ascii, text)))
    numbers = []
    for found in _NUMBER.finditer(alike):
        number = _number(found, text)
        if not (number.may_be_pronoun and _NOT_NUMBERS.search(alike[max(0, found.start() - 24) : found.start()])):
            # students were taught the sign far more often than the word
            after = "%" if found["percent"] else " " if found["joint"] else ""
            numbers.append(Found(found.start(), found.end(), number, after))
    return numbers, unread


def in_shares(text: str) -> str:
    """Write fractions of something in words, as most people do: "3/4 of them" becomes "3 quarters of them", and "by ¼."
    "by a quarter."."""
    return _SHARE.sub(_in_words, text)


def in_plain_form(text: str) -> str:
    """Write the numbers of a text that are not in ASCII as an equation does, for students that read them as written."""
    parts, end = [], 0
    for found in find_numbers(text)[0]:
        if not found.number.written.isascii():
            plain = found.number.equation.strip("() ").replace(" ", "")
            parts += [text[end : found.start], plain, found.after]
            end = found.end
    return "".join([*parts, text[end:]])


def plain_number(value: Fraction) -> str:
    """Write a number in digits, rounded to ten of them unless it is an integer."""
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"


def _in_words(share: re.Match[str]) -> str:
    value = _vulgar(share["vulgar"]) if share["vulgar"] else Fraction(int(share["above"]), int(share["below"]))
    names = [name for name, part in _PARTS.items() if part == value.denominator]
    if not names:
        return share[0]
    if value.numerator > 1:
        return f"{value.numerator} {names[0]}s"
    return names[0] if names[0] == "half" else f"a {names[0]}"


def _vulgar(character: str) -> Fraction:
    return Fraction(unicodedata.numeric(character)).limit_denominator(10)


def _ascii(character: str) -> str:
    return _ALIKE.get(character) or str(unicodedata.decimal(character, character))


def _number(found: re.Match[str], text: str) -> Number:
    end = found.start("percent") if found["percent"] else found.end()
    sign = -1 if found["minus"] else 1
    value: Fraction | int
    parts, digits = Fraction(0), None
    if found["signs"]:
        value = (SLOTS.find(found[0]) if found[0] in SLOTS else RESULTS.find(found[0])) + 1
    elif found["digits"]:
        digits = _without_groups(found["digits"])
        value = Fraction(digits) * _POWERS.get((found["power"] or "").lower(), 1)
    elif found["words"]:
        value = _value_of(found["words"].lower())
    else:
        value = int(found["whole"] or found["before"] or 0)
    if found["above"]:
        parts = Fraction(int(found["above"]), int(found["below"]))
    elif found["vulgar"]:
        parts = _vulgar(found["vulgar"])
    elif words := found["some"] or found["and"]:
        parts = _value_of_parts(words)
    number = sign * (value + parts)
    if found["above"] and not value:
        equation = f"( {sign * int(found['above'])} / {int(found['below'])} )"
    elif parts and number.denominator > 1:
        equation = f"( {number.numerator} / {number.denominator} )"
    elif digits is not None and not found["power"]:
        equation = f"{'-' if found['minus'] else ''}{re.sub('^0+(?=[0-9])', '', f'0{digits}')}"
    else:
        equation = plain_number(number)
    written = text[found.start() : end]
    return Number(number, written.removesuffix("-"), equation, found["percent"] is not None)


def _without_groups(digits: str) -> str:
    """Write digits as Python does, by the rule at the top of this file."""
    if _GROUPED.fullmatch(digits):
        return digits.replace(",", "")
    if digits.count(".") > 1 or ("." in digits and "," in digits):
        digits = digits.replace(".", "")
    return digits.replace(" ", "").replace("'", "").replace(",", ".")


def _value_of_parts(words: str) -> Fraction:
    """The value of parts such as "three quarters" and "half"."""
    *number, part = re.split("[ -]", words.lower())
    return Fraction(_VALUES.get(number[0], 1) if number else 1, _PARTS[part.removesuffix("s")])


def _value_of(words: str) -> int:
    """The value of number words such as "two hundred and fifty-three"."""
    total = part = 0
    for word in re.findall(r"[a-z]+", words):
        if word in _POWERS:
            power = _POWERS[word]
            part = max(part, 1) * power
            if power > 100:
                total, part = total + part, 0
        elif word not in ("a", "and"):
            part += _VALUES[word]
    return total + part
