"""Words of the generated world: lists of ordinary ones, and strings that nobody has read before.

A model that answers from documents has to copy names and values that it does not know. Part of the names and values
are therefore made of random syllables, in capitals or lower case, with letters of several alphabets.
"""

import random
from collections.abc import Callable, Mapping


def _split(words: str) -> tuple[str, ...]:
    return tuple(words.split())


def listed(words: str) -> tuple[str, ...]:
    """Split a list at its commas."""
    return tuple(word.strip() for word in words.split(","))


FIRST_NAMES = _split(
    "Aaron Abigail Adam Adrian Agnes Albert Alexander Amanda Amelia Amy Andrea Andrew Angela Anna Anthony Arthur"
    " Audrey Barbara Beatrice Benjamin Bernard Betty Brandon Brenda Brian Bruce Caleb Carl Caroline Catherine Charles"
    " Charlotte Christina Claire Clara Claudia Colin Connor Craig Cynthia Daisy Daniel Daphne David Deborah Dennis"
    " Derek Donald Doris Dorothy Douglas Duncan Dylan Edgar Edith Edward Elaine Eleanor Elizabeth Ellen Eric Esther"
    " Ethan Eugene Eva Evelyn Felix Fiona Florence Frances Frank Frederick Gabriel Gavin Gerald Gloria Gordon Graham"
    " Gregory Hannah Harold Harry Heather Helen Hugh Ian Irene Isaac Isabel Ivan Jack Jacob James Janet Jason Jean"
    " Jeffrey Jennifer Jessica Joan Joel John Jonathan Joseph Joyce Judith Karen Katherine Keith Kenneth Kevin Kyle"
    " Laura Lawrence Leo Leonard Leslie Lewis Linda Lloyd Louise Lucas Lucy Luke Lydia Malcolm Margaret Maria Marion"
    " Mark Martha Mary Matthew Maurice Max Melissa Michael Mildred Miriam Monica Naomi Natalie Nathan Neil Nicholas"
    " Nicole Nora Norman Olive Oscar Owen Pamela Patricia Patrick Paul Paula Pauline Peter Phoebe Ralph Raymond"
    " Rebecca Richard Roger Ronald Rose Rosemary Roy Ruby Russell Ruth Samuel Sarah Scott Sean Sharon Sheila Simon"
    " Sophie Stanley Stella Stephen Steven Stuart Sylvia Teresa Theodore Thomas Timothy Tom Ursula Vera Veronica"
    " Vincent Violet Virginia Vivian Wayne Wendy William Yvonne Zachary Zoe"
)
LAST_NAMES = _split(
    "Abbott Adams Allen Anderson Archer Armstrong Atkinson Austin Bailey Ball Barker Barrett Barton Bates Bell Berry"
    " Bishop Black Blake Bond Booth Bowen Bradley Brooks Brown Bryant Burgess Burke Burton Butler Byrne Campbell Carr"
    " Carter Chambers Chapman Clark Clayton Cole Coleman Cook Cox Crawford Cross Curtis Dale Davidson Davies Dawson"
    " Day Dean Dixon Doyle Duncan Dunn Edwards Elliott Ellis Evans Farmer Faulkner Fisher Ford Fowler Fox Francis"
    " Franklin Fraser Freeman Frost Fuller Gardner George Gilbert Goodwin Gordon Graham Grant Gray Green Griffin Hall"
    " Hamilton Harding Harper Harris Hart Harvey Hawkins Hayes Henderson Hill Holland Holmes Hopkins Howard Howe"
    " Hudson Hunt Hunter Ingram Irving Jackson Jacobs James Jenkins Jennings Jordan Kelly Kemp Kennedy Kent King"
    " Knight Lamb Lambert Lane Lee Lewis Little Lloyd Long Lowe Lynch Marsh Marshall Mason Matthews May Mills Mitchell"
    " Moore Morgan Morris Morton Nash Nelson Newton Nicholson Norris Oakley Osborne Owen Page Parsons Payne Perkins"
    " Perry Phillips Pierce Poole Porter Potter Powell Pratt Preston Price Quinn Ramsey Reed Reeves Reynolds Rhodes"
    " Richards Riley Roberts Robinson Rogers Rose Ross Rowe Ryan Sanders Saunders Scott Sharp Shaw Shepherd Simmons"
    " Simpson Sinclair Slater Stevens Stewart Stone Sutton Swift Taylor Thomas Thompson Thornton Todd Tucker Tyler"
    " Vaughan Wade Walker Wallace Walsh Walton Ward Warren Waters Watkins Watson Watts Weaver Webb Wells West Wheeler"
    " White Williams Willis Wilson Winter Wood Woodward Wright Wyatt Yates York Young"
)
ADJECTIVES = _split(
    "angry beautiful big bright broken calm cheap clean cold curious dark deep dirty dusty early empty fancy fast fat"
    " fierce fine fresh gentle giant gold golden good grand great green greedy grey happy heavy huge hungry kind large"
    " light little long loud lovely lucky modern narrow neat new nice odd orange pale pink plain polite poor pretty"
    " proud purple quick quiet rare rich rough round rusty sad shiny short shy silent silver simple sleepy slim slow"
    " small smart smooth soft spare square stiff strange striped strong sweet tall tame thick thin tired ugly warm"
    " weak wet wide wild wise wooden yellow young blue bold brave"
)
ANIMALS = listed(
    "alpaca, ape, badger, bat, bear, beaver, bee, bird, boar, buffalo, bull, butterfly, calf, camel, canary, chicken,"
    " cow, crab, crow, deer, donkey, dove, duck, eagle, eel, elephant, falcon, ferret, fish, fox, frog, gecko, gerbil,"
    " giraffe, hare, hawk, hedgehog, hen, heron, horse, iguana, kitten, koala, lamb, leopard, lion, lizard, llama,"
    " mole, monkey, moose, mouse, mule, newt, ostrich, otter, owl, ox, panda, peacock, pelican, pig, pigeon, puppy,"
    " rabbit, raccoon, rat, raven, seal, sheep, sparrow, spider, squirrel, stork, swan, tiger, trout, turkey, whale,"
    " wolf, zebra, sheep dog, sea lion, polar bear, tree frog, barn owl, house cat, mountain goat, field mouse"
)
OBJECTS = listed(
    "anchor, apron, armchair, axe, bag, ball, basket, bed, bell, belt, bench, bicycle, blanket, boat, book, bottle,"
    " bowl, box, bracelet, brush, bucket, cabin, camera, candle, carpet, cart, chair, chest, clock, coat, comb,"
    " computer, cup, curtain, desk, door, dress, fan, farm, field, fork, garden, glass, globe, hammer, hat, house,"
    " jacket, jug, kettle, key, kite, knife, ladder, lamp, lantern, laptop, map, mirror, necklace, needle, notebook,"
    " painting, pan, pen, phone, pillow, plate, purse, radio, ring, rope, rug, saddle, scarf, shelf, shirt, shoe,"
    " shovel, sofa, spoon, statue, stove, suitcase, table, tent, ticket, tool box, towel, toy, tractor, tray,"
    " umbrella, vase, wagon, wallet, watch, wheel, window, coffee machine, rocking chair, garden shed, sewing machine"
)
PLACES = listed(
    "Amsterdam, Ankara, Antwerp, Auckland, Baghdad, Baltimore, Bangkok, Barcelona, Basel, Beijing, Belfast, Belgrade,"
    " Bergen, Berlin, Bern, Bombay, Boston, Brighton, Bristol, Brussels, Budapest, Cairo, Calgary, Cambridge,"
    " Canberra, Cape Town, Cardiff, Casablanca, Cologne, Copenhagen, Cork, Dallas, Damascus, Delhi, Denver, Detroit,"
    " Dresden, Edinburgh, Florence, Frankfurt, Geneva, Genoa, Glasgow, Granada, Halifax, Hanoi, Havana, Helsinki,"
    " Houston, Istanbul, Jakarta, Jerusalem, Kiev, Krakow, Kyoto, Lagos, Leeds, Leipzig, Liverpool, London, Los"
    " Angeles, Lyon, Madrid, Malaga, Manchester, Manila, Marseille, Melbourne, Memphis, Mexico City, Miami, Milan,"
    " Minsk, Moscow, Mumbai, Munich, Nantes, Naples, New Orleans, New York, Nottingham, Ottawa, Oxford, Palermo,"
    " Paris, Perth, Philadelphia, Porto, Quebec, Quito, Reykjavik, Riga, Rio de Janeiro, Rome, Rotterdam, San Diego,"
    " Santiago, Sarajevo, Seattle, Seoul, Seville, Shanghai, Singapore, Sofia, Stockholm, Sydney, Tallinn, Tehran,"
    " Tokyo, Toronto, Toulouse, Trieste, Tunis, Turin, Valencia, Vancouver, Venice, Vilnius, Warsaw, Zagreb, Zurich"
)
JOBS = listed(
    "accountant, actor, actress, architect, artist, astronaut, author, banker, barber, blacksmith, bookseller,"
    " brewer, bricklayer, builder, bus driver, butcher, captain, cashier, chef, chemist, clerk, coach, cook, dancer,"
    " designer, detective, diplomat, doctor, drummer, editor, electrician, engineer, firefighter, fisherman, florist,"
    " gardener, geologist, glazier, goldsmith, guard, guide, hairdresser, historian, hunter, inspector, interpreter,"
    " jeweller, judge, locksmith, magician, manager, mason, mathematician, mechanic, merchant, midwife, miller, miner,"
    " model, optician, painter, pharmacist, photographer, physicist, plasterer, poet, police officer, porter, postman,"
    " potter, printer, professor, programmer, psychologist, receptionist, reporter, roofer, sailor, salesman,"
    " scientist, sculptor, secretary, shepherd, singer, soldier, surgeon, tailor, tax adviser, taxi driver,"
    " translator, vet, watchmaker, weaver, writer, zookeeper"
)
COLORS = listed(
    "amber, beige, black, blue, bronze, brown, cream, crimson, cyan, dark blue, emerald, gold, green, grey, indigo,"
    " ivory, khaki, lavender, light green, lilac, lime, magenta, maroon, mint, navy, olive, orange, peach, pink, plum,"
    " purple, red, rose, ruby, rust, salmon, scarlet, silver, tan, teal, violet, white, yellow"
)
INSTRUMENTS = listed(
    "bagpipes, bass guitar, bassoon, bongos, bugle, cornet, cymbals, double bass, dulcimer, electric guitar,"
    " euphonium, fiddle, French horn, glockenspiel, gong, harmonica, harpsichord, keyboard, lute, lyre, mandolin,"
    " marimba, organ, pan flute, recorder, saxophone, sitar, tambourine, triangle, trombone, tuba, ukulele, viola,"
    " xylophone, zither"
)
FOODS = listed(
    "almonds, apple pie, bacon, bananas, beans, beef, biscuits, bread, broccoli, butter, cabbage, cake, carrots,"
    " cheese, cherries, chicken soup, chips, chocolate, corn, crackers, cucumbers, curry, dates, dumplings, eggs,"
    " figs, fish, fried rice, garlic, grapes, ham, honey, ice cream, jam, lemons, lentils, lobster, melons, muffins,"
    " mushrooms, mustard, noodles, nuts, olives, onions, oranges, pancakes, pasta, peaches, pears, peas, pizza, plums,"
    " popcorn, porridge, potatoes, pudding, pumpkin, raisins, rice, salad, salmon, sandwiches, sausages, shrimps,"
    " soup, spinach, steak, stew, strawberries, sushi, toast, tofu, waffles, walnuts, yoghurt"
)
DRINKS = listed(
    "apple juice, beer, black coffee, black tea, champagne, cider, cocoa, coffee, cola, espresso, gin, green tea,"
    " ginger ale, hot chocolate, iced tea, lemonade, milk, mineral water, orange juice, peppermint tea, port, rum,"
    " sherry, tea, tomato juice, tonic, vodka, water, whisky, wine"
)
LANGUAGES = listed(
    "Arabic, Bengali, Bulgarian, Cantonese, Catalan, Croatian, Czech, Danish, Dutch, English, Estonian, Finnish,"
    " French, Gaelic, German, Greek, Hebrew, Hindi, Hungarian, Icelandic, Irish, Italian, Japanese, Korean, Latin,"
    " Latvian, Mandarin, Norwegian, Persian, Polish, Portuguese, Romanian, Russian, Serbian, Spanish, Swahili,"
    " Swedish, Tamil, Thai, Turkish, Ukrainian, Urdu, Vietnamese, Welsh, Zulu"
)
SPORTS = listed(
    "archery, badminton, baseball, basketball, billiards, bowling, boxing, chess, cricket, croquet, curling, cycling,"
    " darts, diving, fencing, football, golf, gymnastics, handball, hockey, ice hockey, judo, karate, netball, polo,"
    " pool, riding, rowing, rugby, running, sailing, skating, skiing, snooker, softball, squash, surfing, swimming,"
    " table tennis, tennis, volleyball, water polo, wrestling, yoga"
)
VEHICLES = listed(
    "bus, cab, camper van, convertible, coupe, fire engine, jeep, limousine, lorry, minibus, moped, motorbike,"
    " pick-up, quad bike, racing car, scooter, sports car, station wagon, taxi, tractor, tram, tricycle, truck, van"
)
SUBJECTS = listed(
    "algebra, anatomy, archaeology, architecture, art, astronomy, biology, botany, chemistry, dance, drama, ecology,"
    " economics, engineering, ethics, film, geography, geology, geometry, grammar, history, law, linguistics, logic,"
    " mathematics, medicine, music, nursing, philosophy, physics, politics, psychology, sociology, statistics,"
    " theology, zoology, computer science, art history"
)
BUSINESSES = listed(
    "airline, art gallery, bakery, bank, bookshop, brewery, cinema, circus, clinic, dairy, factory, garage, gym,"
    " hospital, hotel, insurance company, law firm, museum, newspaper, nursery, opera, pharmacy, post office, power"
    " plant, prison, publisher, railway, restaurant, sawmill, shipyard, steel mill, supermarket, theatre, town hall,"
    " university, vineyard, zoo"
)
MONTHS = _split("January February March April May June July August September October November December")
COUNTRIES = listed(
    "Albania, Algeria, Argentina, Armenia, Australia, Austria, Belgium, Bolivia, Brazil, Bulgaria, Cambodia,"
    " Cameroon, Canada, Chile, China, Colombia, Costa Rica, Croatia, Cuba, Cyprus, Denmark, Ecuador, Egypt, Estonia,"
    " Ethiopia, Finland, France, Georgia, Germany, Ghana, Greece, Hungary, Iceland, India, Indonesia, Iran, Iraq,"
    " Ireland, Israel, Italy, Jamaica, Japan, Kenya, Latvia, Lebanon, Libya, Lithuania, Malaysia, Malta, Mexico,"
    " Mongolia, Morocco, Nepal, New Zealand, Nigeria, Norway, Pakistan, Panama, Peru, Poland, Portugal, Romania,"
    " Russia, Senegal, Serbia, South Africa, Spain, Sri Lanka, Sweden, Switzerland, Syria, Thailand, Tunisia, Turkey,"
    " Uganda, Ukraine, Uruguay, Vietnam, Wales, Zambia"
)

_ONSETS = (
    *("", ""),
    *_split(
        "b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p ph pl pr qu r s sch sh sl sm sn sp st str sw t th"
        " tr v w wh x y z zh"
    ),
)
_NUCLEI = _split("a e i o u a e i o u ai au ea ee ei ie oa oo ou y")
_CODAS = (*_split("b ck d f g k l ll m n n n nd ng nk nt p r r rd rk rn s s sh ss st t t th v x z"), *("",) * 24)
_ACCENTS = {
    **{"a": "áàâäãåāąă", "c": "çćč", "d": "ďđ", "e": "éèêëēęě", "g": "ğ", "h": "ħ", "i": "íìîïīı", "l": "łľ"},
    **{"n": "ñńň", "o": "óòôöõøōő", "r": "řŕ", "s": "śšşș", "t": "ťţ", "u": "úùûüūůű", "y": "ýÿ", "z": "źżž"},
}
_PARTICLES = _split("van von de del di da dos el al bin ibn la le O' D' Mac Mc van|der van|den de|la")
_SPECIAL = ("ß", "æ", "œ", "þ", "ð")


def syllables(generator: random.Random, fewest: int = 2, most: int = 3) -> str:
    """Make a word of random syllables, in lower case."""
    parts = [
        generator.choice(_ONSETS) + generator.choice(_NUCLEI) + generator.choice(_CODAS)
        for _ in range(generator.randint(fewest, most))
    ]
    return "".join(parts)


def accented(generator: random.Random, word: str, rate: float = 0.3) -> str:
    """Replace some letters of a word by accented ones."""
    letters = []
    for letter in word:
        marked = _ACCENTS.get(letter.lower())
        if marked is None or generator.random() >= rate:
            letters.append(letter)
        else:
            other = generator.choice(marked)
            letters.append(other.upper() if letter.isupper() and len(other.upper()) == 1 else other)
    if generator.random() < 0.1:
        letters.insert(generator.randint(1, len(letters)), generator.choice(_SPECIAL))
    return "".join(letters)


def _ordinary_word(generator: random.Random, words: tuple[str, ...]) -> str:
    """Draw a listed name; one in six gets another ending, so that no list of names is enough."""
    word = generator.choice(words)
    if generator.random() < 0.17:
        word = word[: generator.randint(2, 4)] + syllables(generator, 1, 1)
    return word


def ordinary_name(generator: random.Random) -> str:
    first, last = _ordinary_word(generator, FIRST_NAMES), _ordinary_word(generator, LAST_NAMES)
    return f"{first} {last}"


def invented_name(generator: random.Random) -> str:
    return " ".join(syllables(generator, 1, 3).capitalize() for _ in range(2))


def foreign_name(generator: random.Random) -> str:
    """Make a name of accented syllables, sometimes with a particle, a hyphen or a third part."""
    words = [accented(generator, syllables(generator, 1, 2)).capitalize() for _ in range(2)]
    draw = generator.random()
    if draw < 0.15:
        words[0] += "-" + syllables(generator, 1, 1).capitalize()
    elif draw < 0.25:
        words[1] += "-" + syllables(generator, 1, 2).capitalize()
    elif draw < 0.45:
        particle = generator.choice(_PARTICLES)
        words[1] = particle + words[1] if particle[0].isupper() else f"{particle.replace('|', ' ')} {words[1]}"
    elif draw < 0.6:
        words.insert(1, accented(generator, syllables(generator, 1, 2)).capitalize())
    elif draw < 0.7:
        words[1] += generator.choice(("son", "sen", "sson", "ová", "ski", "ov", "ić", "escu", "oğlu", "idis"))
    return " ".join(words)


def short_name(generator: random.Random) -> str:
    """A single word: a first name, a last name or an invented one."""
    words = generator.choice((FIRST_NAMES, LAST_NAMES))
    return _ordinary_word(generator, words) if generator.random() < 0.6 else syllables(generator).capitalize()


_TITLES = _split("Mr Mrs Ms Dr Professor Captain Aunt Uncle Sir Lady Judge")


def titled_name(generator: random.Random) -> str:
    return f"{generator.choice(_TITLES)} {_ordinary_word(generator, LAST_NAMES)}"


def thing_name(generator: random.Random) -> str:
    """Name a person by what they are: "the tall sailor"."""
    return f"the {generator.choice(ADJECTIVES)} {generator.choice(JOBS)}"


Maker = Callable[[random.Random], str]
_NAMES: tuple[tuple[Callable[[random.Random], str], float], ...] = (
    (ordinary_name, 0.42),
    (invented_name, 0.2),
    (foreign_name, 0.2),
    (short_name, 0.1),
    (titled_name, 0.05),
    (thing_name, 0.03),
)


def names(generator: random.Random, count: int, *, is_similar: bool = False, make: Maker | None = None) -> list[str]:
    """Draw different names of one kind of person, or by `make`; some are all in lower case.

    Similar ones share a word with another one.
    """
    makers, weights = zip(*_NAMES, strict=True)
    draw = make or generator.choices(makers, weights)[0]
    is_lower = generator.random() < 0.15
    found: dict[str, None] = {}
    while len(found) < count:
        name = draw(generator)
        if is_similar and found and " " in name and generator.random() < 0.7:
            name = _resembling(generator, generator.choice(list(found)), name)
        found[name.lower() if is_lower else name] = None
    return list(found)


def _resembling(generator: random.Random, one: str, other: str) -> str:
    """Join the first word of one name with the rest of the other, or the other way round."""
    (first, _, last), (other_first, _, other_last) = one.partition(" "), other.partition(" ")
    return f"{first} {other_last}" if generator.random() < 0.5 else f"{other_first} {last or other_last}"


def _described(generator: random.Random, nouns: tuple[str, ...], rate: float) -> str:
    noun = generator.choice(nouns)
    if generator.random() < 0.12:
        noun = syllables(generator)
    if generator.random() >= rate:
        return noun
    adjective = generator.choice(ADJECTIVES) if generator.random() < 0.88 else syllables(generator)
    return f"{adjective} {noun}"


def _place(generator: random.Random) -> str:
    draw = generator.random()
    if draw < 0.55:
        return generator.choice(PLACES)
    word = syllables(generator).capitalize()
    return accented(generator, word) if draw < 0.7 else word


def _plain(words: tuple[str, ...], invented: float = 0.15) -> Callable[[random.Random], str]:
    def draw(generator: random.Random) -> str:
        if generator.random() < invented:
            word = syllables(generator)
            return word.capitalize() if words[0][0].isupper() else word
        return generator.choice(words)

    return draw


def _brand(generator: random.Random) -> str:
    word = syllables(generator, 1, 2).capitalize()
    return f"{word} {generator.randint(1, 99)}" if generator.random() < 0.3 else word


def _number(low: int, high: int) -> Callable[[random.Random], str]:
    return lambda generator: str(generator.randint(low, high))


def _date(generator: random.Random) -> str:
    return f"{generator.randint(1, 31)} {generator.choice(MONTHS)}"


def _year_or_place(generator: random.Random) -> str:
    return str(generator.randint(1880, 2029)) if generator.random() < 0.7 else _place(generator)


# What a value may be, by the name of its class.
VALUES: Mapping[str, Callable[[random.Random], str]] = {
    "animal": lambda generator: _described(generator, ANIMALS, 0.65),
    "object": lambda generator: _described(generator, OBJECTS, 0.6),
    "vehicle": lambda generator: _described(generator, VEHICLES, 0.5),
    "place": _place,
    "job": _plain(JOBS, 0.1),
    "color": _plain(COLORS, 0.1),
    "instrument": _plain(INSTRUMENTS, 0.15),
    "food": _plain(FOODS),
    "drink": _plain(DRINKS),
    "language": _plain(LANGUAGES, 0.2),
    "sport": _plain(SPORTS),
    "subject": _plain(SUBJECTS),
    "business": _plain(BUSINESSES),
    "country": _plain(COUNTRIES, 0.2),
    "brand": _brand,
    "month": _plain(MONTHS, 0.0),
    "date": _date,
    "year": _number(1880, 2029),
    "age": _number(2, 104),
    "number": _number(1, 999),
    "birth": _year_or_place,
    "person": ordinary_name,
}


def values(generator: random.Random, kind: str, count: int, *, is_similar: bool = False) -> list[str]:
    """Draw different values of a class; similar ones share a word with another one, if they have several."""
    found: dict[str, None] = {}
    for _ in range(200 * count):
        if len(found) == count:
            break
        value = VALUES[kind](generator)
        if is_similar and found and " " in value and generator.random() < 0.7:
            value = _resembling(generator, generator.choice(list(found)), value)
        found[value] = None
    while len(found) < count:  # more values than the class has
        found[syllables(generator)] = None
    return list(found)
