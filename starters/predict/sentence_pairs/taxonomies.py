"""Words of everyday inferences as trees: what a word means includes what stands in parentheses after it.

Words side by side exclude each other, and words joined by `=` mean the same.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal

from starters.predict.everyday.words import nouns

Relation = Literal["entailment", "neutral", "contradiction"]


@dataclass(frozen=True)
class Taxonomy:
    """Words, each with its wider words, the nearest first; words that mean the same are each other's wider words."""

    wider: dict[str, tuple[str, ...]]

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Return all words, in order."""
        return tuple(self.wider)

    @cached_property
    def narrower(self) -> dict[str, tuple[str, ...]]:
        """Return the narrower words of each word."""
        return {word: tuple(one for one, some in self.wider.items() if word in some) for word in self.wider}

    def relation(self, told: str, said: str) -> Relation:
        """Relation of a statement that something is `told` to one that it is `said`."""
        if told == said or said in self.wider[told]:
            return "entailment"
        return "neutral" if told in self.wider[said] else "contradiction"


def _parse(text: str) -> Taxonomy:
    wider: dict[str, tuple[str, ...]] = {}

    def read(tokens: Iterator[str], above: tuple[str, ...]) -> None:
        last: list[str] = []
        for token in tokens:
            if token == "(":
                read(tokens, (*last, *above))
            elif token == ")":
                return
            else:
                last = [one.replace("_", " ") for one in token.split("=")]
                for one in last:
                    wider[one] = (*(other for other in last if other != one), *above)

    read(iter(re.findall(r"[()]|[^\s()]+", text)), ())
    return Taxonomy(wider)


KINDS = """
animal ( dog ( puppy poodle beagle terrier labrador bulldog ) cat ( kitten ) horse ( pony ) cow pig sheep (
 lamb ) goat donkey rabbit
 mouse rat hamster squirrel fox wolf bear lion tiger leopard elephant giraffe zebra monkey gorilla kangaroo
 camel deer whale dolphin seal
 bat bird ( parrot eagle owl duck goose chicken crow sparrow pigeon swan penguin hen robin seagull ) fish (
 salmon trout shark tuna
 goldfish cod ) insect ( bee ant butterfly beetle fly mosquito wasp ) snake lizard frog turtle crocodile spider
 snail )
food ( fruit ( apple banana orange pear peach plum cherry grape mango lemon strawberry pineapple melon apricot
 ) vegetable ( carrot potato
 tomato onion cabbage cucumber spinach broccoli pea bean lettuce ) meat ( beef pork chicken_meat ham sausage
 steak bacon ) bread=loaf
 cheese pizza pasta=spaghetti soup cake cookie pie pancake salad sandwich rice chocolate ice_cream egg burger
 noodles toast )
drink=beverage ( water milk juice coffee tea lemonade beer wine cocoa )
vehicle ( car ( taxi sports_car sedan limousine ) bus truck=lorry van motorcycle=motorbike bicycle=bike train
 tram boat ( sailboat canoe
 ferry ) ship airplane=plane helicopter tractor ambulance scooter )
furniture ( chair ( armchair stool ) table ( desk ) bed sofa=couch bookcase wardrobe cupboard bench dresser )
musical_instrument ( guitar piano violin flute drum trumpet cello harp saxophone clarinet )
tool ( hammer saw screwdriver drill wrench axe shovel rake )
flower ( rose tulip daisy lily sunflower orchid )
tree ( oak pine birch maple willow palm_tree )
building ( house ( cottage villa ) church school hospital castle barn tower factory hotel )
weapon ( sword gun ( pistol rifle ) spear bow )
toy ( doll teddy_bear puzzle kite toy_car )
jewel=piece_of_jewelry ( ring necklace bracelet earring )
"""
CLOTHES = """
hat=cap shirt ( T-shirt blouse ) coat ( raincoat ) jacket dress skirt scarf sweater=pullover uniform suit tie
 glove belt
shoe ( boot sandal sneaker )
"""
PEOPLE = """
person=human ( adult ( man woman ) child=kid ( boy girl ) )
"""
JOBS = """
doctor=physician ( surgeon ) nurse teacher lawyer=attorney farmer baker pilot police_officer=policeman
 cook=chef painter
musician ( singer pianist violinist guitarist drummer ) writer=author ( novelist poet ) scientist ( chemist
 physicist biologist ) engineer
carpenter dentist waiter judge soldier sailor plumber electrician
athlete ( swimmer runner boxer football_player tennis_player gymnast ) actor butcher tailor gardener librarian
"""
ACTIVITIES = """
sleeping=asleep ( taking_a_nap ) awake ( moving_about ( running ( jogging ) walking ( strolling hiking )
 dancing climbing swimming jumping
 riding_a_bike riding_a_horse skiing skating ) sitting ( sitting_on_a_bench sitting_on_the_floor ) eating (
 eating_an_apple eating_pizza
 eating_soup eating_a_sandwich eating_lunch eating_dinner eating_breakfast ) drinking ( drinking_water
 drinking_coffee drinking_tea
 drinking_milk ) reading ( reading_a_book reading_a_newspaper reading_a_letter ) writing ( writing_a_letter
 writing_a_book
 writing_an_email ) making_music=playing_music ( playing_an_instrument ( playing_the_guitar playing_the_piano
 playing_the_violin
 playing_the_drums ) singing ( singing_a_song ) ) playing_a_sport=doing_sports (
 playing_football=playing_soccer playing_tennis
 playing_basketball playing_volleyball ) playing_a_game ( playing_chess playing_cards ) working (
 repairing_a_car=fixing_a_car
 painting_a_wall digging_a_hole teaching_a_class ) cooking=preparing_food ( cooking_dinner cooking_soup
 baking_a_cake ) cleaning
 ( washing_the_dishes=doing_the_dishes washing_the_car sweeping_the_floor ) traveling ( driving ( driving_a_car
 driving_a_bus ) flying_a_plane
 taking_the_train ) watching_television=watching_TV talking ( talking_on_the_phone whispering shouting )
 shopping ( buying_shoes
 buying_groceries ) crying laughing standing_still painting_a_picture taking_a_shower waiting_for_the_bus )
"""
PLACES = """
indoors=inside=inside_a_building ( at_home=in_the_house ( in_the_kitchen in_the_bedroom in_the_bathroom
 in_the_living_room in_the_attic
 in_the_basement ) at_school ( in_the_classroom ) in_the_library in_the_museum in_the_church in_the_restaurant
 in_the_hospital
 in_the_office in_the_supermarket in_the_cinema=at_the_movies in_the_gym )
outdoors=outside ( in_the_park in_the_garden=in_the_yard on_the_beach in_the_forest=in_the_woods
 in_the_street=on_the_street in_the_field
 on_the_mountain in_the_desert on_the_lake on_the_bridge in_the_parking_lot on_the_playground )
"""
CITIES = """
in_Europe ( in_France ( in_Paris in_Lyon in_Nice ) in_Germany ( in_Berlin in_Munich in_Hamburg ) in_Italy (
 in_Rome in_Milan in_Venice )
 in_Spain ( in_Madrid in_Barcelona ) in_England ( in_London in_Oxford ) in_Austria ( in_Vienna ) in_Greece (
 in_Athens ) in_Portugal
 ( in_Lisbon ) in_Sweden ( in_Stockholm ) in_Poland ( in_Warsaw ) in_Norway in_Ireland ( in_Dublin ) )
in_Asia ( in_Japan ( in_Tokyo in_Kyoto ) in_China ( in_Beijing in_Shanghai ) in_India ( in_Delhi in_Mumbai )
 in_Thailand in_Korea ( in_Seoul ) )
in_Africa ( in_Egypt ( in_Cairo ) in_Kenya ( in_Nairobi ) in_Nigeria ( in_Lagos ) in_Morocco )
in_America ( in_the_United_States=in_the_USA ( in_New_York in_Chicago in_California in_Texas in_Boston )
 in_Canada ( in_Toronto in_Montreal )
 in_Mexico in_Brazil in_Peru ) in_Australia ( in_Sydney in_Melbourne )
"""
POSITIONS = """
on_the_table under_the_table in_the_box on_the_shelf in_the_drawer behind_the_door on_the_floor in_the_bag
 in_front_of_the_house
behind_the_house on_the_chair under_the_bed on_the_bed in_the_cupboard in_the_fridge on_the_roof in_the_basket
 on_the_wall in_the_garage
next_to_the_lamp under_the_chair on_the_left on_the_right in_the_pocket
"""
DAYS = """
on_a_weekday=during_the_week ( on_Monday on_Tuesday on_Wednesday on_Thursday on_Friday )
 at_the_weekend=on_the_weekend ( on_Saturday on_Sunday )
"""
MONTHS = """
in_winter ( in_January in_February in_December ) in_spring ( in_March in_April in_May ) in_summer ( in_June
 in_July in_August )
in_autumn=in_the_fall ( in_September in_October in_November )
"""
HOURS = """
in_the_daytime=during_the_day ( in_the_morning ( at_breakfast at_dawn=at_sunrise ) at_noon=at_midday
 in_the_afternoon )
in_the_evening ( at_sunset=at_dusk ) at_night=during_the_night ( at_midnight )
"""
WHEN = "yesterday today tomorrow last_week next_week last_year next_year a_long_time_ago"
# Exclusive qualities by subject; each line a group.
QUALITIES = {
    "any": """
red ( dark_red ) ; blue ( light_blue dark_blue ) ; green ; yellow ; white ; black ; brown ; pink ;
 purple=violet ; orange ; gray=grey ; silver ; golden
big=large ( huge=enormous=gigantic ) small=little ( tiny )
heavy light=lightweight
wet ( soaked ) dry
clean ( spotless ) dirty ( filthy )
new ( brand_new ) old ( ancient )
expensive=costly cheap=inexpensive
hot ( boiling ) warm cold ( freezing )
long short
thick thin
hard soft
wooden=made_of_wood metal=made_of_metal ( made_of_iron made_of_steel ) plastic=made_of_plastic made_of_glass
 made_of_stone made_of_paper
 made_of_leather made_of_gold
round ( circular ) square triangular oval
broken=damaged intact=undamaged
beautiful=pretty ugly
full empty
open closed=shut
striped spotted plain
safe dangerous
visible invisible
rough smooth
sharp blunt
bright dark
""",
    "person": """
happy=glad ( delighted cheerful ) sad=unhappy ( heartbroken miserable ) angry=mad ( furious )
tall short
young old=elderly
rich=wealthy poor
strong weak
awake asleep=sleeping
healthy=well ill=sick
tired ( exhausted ) rested
fast=quick slow
married single=unmarried
thin=slim fat=overweight
blond=blonde dark-haired red-haired bald
hungry ( starving ) full
smart=intelligent=clever stupid
early late ( an_hour_late )
brave cowardly
polite rude=impolite
quiet=silent loud=noisy
barefoot
alive dead
left-handed right-handed
busy free
famous unknown
sober drunk
calm nervous=anxious
French German Italian Spanish Japanese Chinese Canadian Mexican Swedish Indian
patient impatient
careful careless
generous stingy
""",
    "food": """
sweet sour bitter salty=salted
hot ( boiling ) warm cold ( frozen )
fresh rotten=spoiled
raw=uncooked cooked ( fried boiled baked grilled roasted )
ripe unripe
delicious=tasty disgusting
""",
    "place": """
open closed=shut
crowded=full_of_people empty=deserted
quiet loud=noisy
clean dirty
near=close far_away=distant
locked unlocked
big=large ( huge ) small=little ( tiny )
sunny rainy snowy foggy
""",
    "event": """
long short
free expensive
boring interesting=exciting
cancelled taking_place
easy ( very_easy ) difficult=hard
private public
over=finished still_going_on
on_time delayed=late
successful unsuccessful=a_failure
""",
    "device": """
on=switched_on=turned_on off=switched_off=turned_off
broken=out_of_order working
loud=noisy quiet=silent
fast slow
""",
}
SUBJECTS = {
    "any": (
        "car ball box house shirt table cup book bag door bottle chair hat coat boat wall lamp bike bowl room "
        "curtain towel flower roof stone plate carpet blanket dress ring knife jacket umbrella phone pencil "
        "envelope shoe toy gate sign bucket tent kite desk"
    ),
    "person": (
        "man woman boy girl child teacher doctor student nurse baby player singer farmer driver neighbor king "
        "queen soldier"
    ),
    "food": (
        "soup apple coffee bread cake tea fish meat pizza salad orange milk cheese sandwich sauce potato pie rice"
    ),
    "place": (
        "shop store library park museum street restaurant school beach garden station airport office pool "
        "market church kitchen"
    ),
    "event": ("meeting concert lesson film movie party test exam game match lecture trip flight show race"),
    "device": ("computer radio television oven light machine phone printer engine fan alarm camera"),
}


@cache
def taxonomy(name: str) -> Taxonomy:
    """Return a taxonomy by the name of its text, such as "kinds". Raises KeyError."""
    return _parse(_TEXTS[name])


@cache
def quality_groups(kind: str) -> tuple[Taxonomy, ...]:
    """Return the groups of exclusive qualities of a kind of subject. Raises KeyError."""
    text = re.sub(r"\n ", " ", QUALITIES[kind].strip()).replace(" ;", "")
    return tuple(_parse(line) for line in text.splitlines())


@cache
def wordnet_kinds() -> tuple[tuple[str, str], ...]:
    """Return nouns of WordNet with one of their wider kinds."""
    wanted = set(taxonomy("kinds").words) | {"clothing", "mammal", "plant", "container", "machine"}
    return tuple((noun, kind) for noun, kinds in nouns() for kind in kinds if kind in wanted and len(noun) < 11)


_TEXTS = {
    "kinds": KINDS,
    "clothes": CLOTHES,
    "people": PEOPLE,
    "jobs": JOBS,
    "activities": ACTIVITIES,
    "places": PLACES,
    "cities": CITIES,
    "positions": POSITIONS,
    "days": DAYS,
    "months": MONTHS,
    "hours": HOURS,
    "when": WHEN,
}
