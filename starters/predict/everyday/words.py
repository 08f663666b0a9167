"""Word classes of everyday problems and inferences, by hand, and nouns of WordNet.

In a scene, `{class}` is a word of that class, drawn anew at each place. Words that a problem repeats, such as people
and things, are drawn once for a problem.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path


def listed(text: str, separator: str | None = None) -> tuple[str, ...]:
    """Split a text into words, or at a separator."""
    return tuple(text.split(separator))


WOMEN = listed(
    "Alice Amy Anna Aisha Beth Carla Carol Chloe Diana Elena Ella Emily Eva Fatima Grace Hannah Helen Ines Irene "
    "Jane Jenny Jessica Joan Julie Karen Kate Kim Laura Leila Lena Linda Lisa Lucy Maria Marta Maya Megan Mia "
    "Mira Nadia Nancy Nina Nora Olivia Paula Priya Rachel Rita Ruth Sandra Sara Sofia Sue Tanya Tina Vera Wendy "
    "Yuki Zoe Zara Ada Bea Clara Dora Emma Faye Gina Hanna Julia Mary Olga Rosa"
)
MEN = listed(
    "Aaron Alex Ali Andrew Anton Ben Bill Bob Brian Carlos Charlie Chris Daniel David Dennis Diego Eric Ethan "
    "Felix Fred George Greg Hassan Henry Igor Jack Jacob James Jason Jim Joe John Jonas Jose Karl Ken Kevin Leo "
    "Liam Lucas Marco Mark Martin Matt Max Mike Mohammed Nathan Nick Noah Oliver Omar Oscar Pablo Paul Peter Ravi "
    "Ray Robert Ryan Sam Simon Stefan Steve Ted Theo Tim Tony Viktor Wei Will Yusuf Zack Adam Bruno Carl Dave Ed "
    "Frank Hugo Ivan Luke Tom Paco Victor"
)
TITLED = (("Mr.", "he"), ("Mrs.", "she"), ("Ms.", "she"), ("Uncle", "he"), ("Aunt", "she"), ("Dr.", "she"))
SURNAMES = listed(
    "Baker Bell Brown Chen Clark Cook Davis Diaz Evans Fischer Garcia Green Hill Ivanov Jones Khan King Lee Lopez "
    "Meyer Miller Moore Nowak Okafor Patel Reed Rossi Silva Smith Stone Tanaka Taylor Turner Weber White Wilson "
    "Wong Young"
)
ROLES = tuple(
    tuple(one.split(":"))
    for one in listed(
        "the teacher:she,a farmer:he,the baker:he,a gardener:she,my brother:he"
        ",my sister:she,her mother:she,the coach:he"
        ",a girl:she,a boy:he,the cook:he,my father:he,my mother:she,a painter:she,the librarian:she,a shopkeeper:he"
        ",grandma:she,grandpa:he,a student:she,a child:she,a man:he,a woman:she,the neighbour:he,a customer:she",
        ",",
    )
)
# Things to count, as singular and plural.
_REGULAR = (
    "apple orange banana melon pear plum lemon carrot onion potato:potatoes tomato:tomatoes egg cookie muffin cupcake"
    " sandwich:sandwiches pizza bagel donut pie cake candy:candies chocolate lollipop grape"
    " strawberry:strawberries peach:peaches"
    " cherry:cherries cucumber pepper mushroom pencil pen crayon marker ruler eraser book notebook"
    " magazine comic newspaper letter"
    " envelope card stamp sticker coin marble button shell stone bead ribbon ticket balloon candle flower"
    " rose tulip daisy:daisies"
    " seed nut tree plant leaf:leaves bottle can cup plate spoon fork knife:knives bowl glass:glasses mug"
    " ball kite doll block puzzle toy"
    " game car truck bicycle bike chair table lamp shirt hat sock shoe scarf:scarves dress:dresses jacket"
    " coat pair~of~gloves"
    " fish:fish dog cat rabbit hamster bird chicken duck cow sheep:sheep goat pig horse frog turtle"
    " butterfly:butterflies bee ant"
    " photo picture painting poster key lightbulb battery:batteries brick tile nail screw tool bolt plank"
    " rope box:boxes"
    " blueberry:blueberries mango:mangoes olive pancake waffle cracker roll bun burger hot~dog taco dumpling tea~bag"
    " napkin towel pillow blanket curtain brush:brushes comb bracelet necklace ring watch:watches bag"
    " basket trophy:trophies"
    " medal point badge token chip domino:dominoes baseball~card tennis~ball water~bottle ice~cream"
    " postcard paper~clip"
)
THINGS = tuple(
    (plural.replace("~", " ") if plural else f"{one}s".replace("~", " "), one.replace("~", " "))
    for one, _, plural in (word.partition(":") for word in _REGULAR.split())
    if not one.startswith("pair")
)
PEOPLES = tuple(
    (plural or f"{one}s", one)
    for one, _, plural in (
        word.partition(":")
        for word in listed(
            "student pupil child:children boy girl friend guest worker player visitor"
            " customer passenger soldier teacher"
            " neighbor cousin kid person:people adult tourist dancer singer runner member classmate"
            " athlete scout camper"
        )
    )
)
BOXES = tuple(
    (plural or f"{one}s", one)
    for one, _, plural in (
        word.partition(":")
        for word in listed(
            "box:boxes bag jar basket drawer crate carton shelf:shelves tray bucket bin"
            " pack packet case container row"
            " pile stack bowl folder envelope cage tank pot page bundle group sack truck cart locker"
        )
    )
)
CLASSES: Mapping[str, tuple[str, ...]] = {
    name: tuple(words.split(","))
    for name, words in {
        "lost": (
            "gave away,lost,sold,ate,used,used up,threw away,broke,spent,donated,dropped,mailed,returned,traded away"
            ",gave to a friend,gave to {M},gave {M},lent to {M},handed out,burned,finished,cut up,shipped"
            ",lent,packed away"
            ",sent to {M},left at home,misplaced,took out,removed,shared with {M},passed to {M}"
            ",swapped away,hid,destroyed"
        ),
        "got": (
            "bought,found,got,received,was given,picked,collected,made,won,earned,borrowed,took,picked up"
            ",gathered,ordered"
            ",added,brought home,caught,baked,discovered,was handed,grew,drew,printed,unpacked,gained"
            ",stole,purchased,acquired"
        ),
        "had": "had,owned,started with,began with,bought,picked,collected,found,made,got,baked,received"
        ",ordered,kept,won",
        "left": (
            "How many {things} [are|were] left?,How many {things} does {N} have left?,How many are left?"
            ",How many {things} remain?,How many {things} does {he} have now?,How many {things} does {N} still have?"
            ",How many does {he} have left?,How many {things} did {N} have then?"
            ",How many {things} were there at the end?"
            ",What number of {things} does {he} have now?,How many {things} did {he} keep?"
            ",How many does {N} have in the end?"
        ),
        "now": (
            "How many {things} does {N} have now?,How many {things} does {he} have in all?"
            ",How many does {he} have now?"
            ",How many {things} does {N} have altogether?,How many {things} are there now?"
            ",How many are there in total?"
            ",What is the total number of {things}?,How many {things} does {he} have in total?"
            ",How many {things} did {N} end up with?"
        ),
        "total": "in all,in total,altogether,together,all together,combined,,,overall",
        "first": "at first,in the beginning,to begin with,to start with,before,originally,at the start,initially",
        "adj": (
            "red,blue,green,yellow,white,black,brown,pink,purple,orange,grey,small,large,big,little,old"
            ",new,plain,striped"
            ",round,long,short,wooden,plastic,metal,glass,ripe,fresh,broken,rotten,sweet,sour,hot,cold"
            ",heavy,light,cheap"
        ),
        "day": "Monday,Tuesday,Wednesday,Thursday,Friday,Saturday,Sunday,the first day,the second day,the weekend",
        "when": "in the morning,in the afternoon,in the evening,at night,today,yesterday,last week"
        ",this week,this month,later",
        "place": (
            "shop,store,bakery,library,school,garden,park,museum,zoo,farm,kitchen,market,classroom,restaurant,factory"
            ",office,warehouse,hotel,hall,theater,cafe,supermarket,garage,field,yard,house,pond,cinema"
            ",bookstore,room,stadium"
        ),
        "kin": "brother,sister,mother,father,cousin,friend,uncle,aunt,son,daughter,grandmother"
        ",grandfather,teacher,neighbor",
        "vehicle": "car,train,bus,truck,boat,bicycle,bike,ship,plane,cyclist,runner,motorbike,van,ferry"
        ",taxi,tram,horse,drone",
        "goes": "travels,goes,drives,moves,runs,rides,covers,flies,sails",
        "went": "drove,traveled,walked,rode,ran,hiked,cycled,flew,sailed,biked,went,jogged,swam,covered",
        "unit": "miles,kilometers,km,kilometres,meters,metres,blocks,yards,feet",
        "liquid": "water,milk,juice,oil,paint,gas,fuel,lemonade,soup,petrol,tea,coffee,gasoline,cider",
        "volume": "liters,litres,gallons,cups,glasses,bottles,pints,ml,quarts,buckets",
        "powder": "flour,sugar,rice,butter,salt,cocoa,milk,cheese,oats,oil,water,yeast,dough,honey,pasta,meat,beans",
        "measure": "cups,grams,spoons,tablespoons,teaspoons,kilograms,kg,ounces,pounds,g,scoops,cups,cups",
        "dish": (
            "cake,bread,pancakes,soup,pie,a loaf of bread,pizza,muffins,sauce,a batch of cookies,salad"
            ",a recipe,dough,curry"
            ",stew,waffles,the dish,jam,cookies,brownies"
        ),
        "long": "rope,ribbon,string,wire,board,plank,cloth,pipe,wood,fabric,cable,thread,paper,log,road,stick,tape",
        "length": "meters,metres,feet,inches,cm,centimeters,m,yards,centimetres,mm",
        "weight": "kg,kilograms,pounds,grams,tons,ounces,kilos,lbs",
        "more_adj": "taller,longer,heavier,wider,higher,deeper,larger,bigger,older,faster,thicker,farther,further",
        "less_adj": "shorter,lighter,smaller,lower,younger,slower,narrower,thinner,nearer,cheaper",
        "each": "each,apiece,per piece,each one,a piece",
        "does_it": (
            "reads,writes,solves,types,bakes,makes,sells,packs,paints,folds,washes,plants,cleans,prints"
            ",produces,delivers"
            ",builds,assembles,repairs,sews,counts,answers,draws,picks,cooks,fills,checks"
        ),
        "do_it": (
            "read,write,solve,type,bake,make,sell,pack,paint,fold,wash,plant,clean,print,produce,deliver"
            ",build,assemble,repair,sew,count,answer,draw,pick,cook,fill,check"
        ),
        "period": "day,hour,week,minute,month,year,night,morning,shift",
        "city": "the city,the village,the town,the island,the country,the region,the stadium"
        ",the university,the company",
        "share": (
            "shared,divided,split,distributed,handed out,dealt out,gave out,separated,divided up,split up"
            ",arranged,sorted"
        ),
        "equally": (
            "equally,evenly,fairly,so that each gets the same number,in equal parts,into equal shares"
            ",with the same number for each,,"
        ),
        "filler": (
            "It was a sunny day.,Everyone was happy.,{N} likes {things} a lot.,It is {N}'s birthday."
            ",The weather was nice."
            ",{N} was very tired.,That was a good day.,{N} lives near the {place}.,School starts soon."
            ",They are friends."
        ),
    }.items()
}


@cache
def nouns() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return WordNet's nouns of `nouns.txt`, each with its wider kinds."""
    text = Path(__file__).with_name("nouns.txt").read_text(encoding="utf-8")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return tuple((word, tuple(kinds)) for word, *kinds in lines)


def plural_of(noun: str) -> str:
    """Form the plural of a regular noun."""
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"
