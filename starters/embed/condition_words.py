"""Words that ask for an attribute: English in both spellings, WordNet's synonyms, and those of other languages.

Nouns are pairs of singular and plural. Foreign sentences are whole, because their grammar is not English's.
"""

Noun = tuple[str, str]


def _regular(words: str) -> tuple[Noun, ...]:
    """Pairs of comma-separated English nouns with a regular plural."""
    return tuple((word.strip(), word.strip() + "s") for word in words.split(","))


def _pairs(words: str) -> tuple[Noun, ...]:
    """Pairs of comma-separated nouns, each written `singular/plural`."""
    singular_and_plural = (word.strip().split("/") for word in words.split(","))
    return tuple((one, several) for one, several in singular_and_plural)


# The synsets of the attribute in WordNet with their nearest hyponyms, and what people say besides.
ENGLISH: dict[str, tuple[Noun, ...]] = {
    "color": (
        *_regular("color, colour, hue, tint, shade, tone, coloring, colouring, coloration, colouration, pigment"),
        *_regular("tinge, tincture, color tone, colour tone, main color, main colour, paint, dye, chroma"),
        *_pairs("pigmentation/pigmentations, chromaticity/chromaticities, color scheme/color schemes"),
    ),
    "shape": (
        *_regular("shape, form, figure, outline, contour, silhouette, profile, configuration, geometric shape"),
        *_regular("geometrical shape, geometric form, geometrical form, geometric figure, conformation, kind of shape"),
        *_regular("type of shape, polygon, outer form, formation, cut"),
        *_pairs("geometry/geometries, morphology/morphologies, lineation/lineations, body shape/body shapes"),
    ),
    "size": (
        *_regular("size, dimension, magnitude, extent, scale, bulk, measurement, relative size"),
        *_pairs("bigness/sizes, largeness/sizes, smallness/sizes, littleness/sizes, area/areas"),
    ),
    "position": (
        *_regular("position, place, location, spot, placement, site, whereabout, arrangement, point, region"),
        *_pairs("part of the picture/parts of the picture, corner/corners, locality/localities, side/sides"),
    ),
    "background": (
        *_regular("background, backdrop, background color, background colour, color of the background, ground"),
        *_regular("colour of the background, color behind the object, colour behind the thing, backcloth"),
        *_regular("tone of the background, hue of the background, shade of the background, setting"),
    ),
    "texture": (
        *_regular("texture, pattern, surface, surface pattern, design, motif, pattern on the surface, fill pattern"),
        *_pairs("patterning/patterns, texturing/textures, surface texture/surface textures, grain/grains"),
    ),
}
# Foreign nouns, with plurals where a visitor might use them.
FOREIGN: dict[str, tuple[Noun, ...]] = {
    "color": _pairs(
        "Farbe/Farben, Farbton/Farbtöne, Färbung/Färbungen, Kolorit/Kolorite, couleur/couleurs, teinte/teintes,"
        "coloris/coloris, color/colores, tono/tonos, colore/colori, tinta/tinte, cor/cores, kleur/kleuren, färg/färger,"
        "farve/farver, kolor/kolory, barva/barvy, renk/renkler, culoare/culori, väri/värit, цвет/цвета, χρώμα/χρώματα"
    ),
    "shape": _pairs(
        "Form/Formen, Gestalt/Gestalten, Umriss/Umrisse, Kontur/Konturen, Figur/Figuren, forme/formes, figure/figures,"
        "contour/contours, forma/formas, figura/figuras, contorno/contornos, forma/forme, sagoma/sagome,"
        "formato/formatos, vorm/vormen, omtrek/omtrekken, kształt/kształty, tvar/tvary, şekil/şekiller, muoto/muodot,"
        "форма/формы, σχήμα/σχήματα, silueta/siluetas, Silhouette/Silhouetten"
    ),
    "size": _pairs(
        "Größe/Größen, Ausmaß/Ausmaße, taille/tailles, grandeur/grandeurs, tamaño/tamaños, dimensione/dimensioni,"
        "grandezza/grandezze, tamanho/tamanhos, grootte/groottes, storlek/storlekar, rozmiar/rozmiary, размер/размеры"
    ),
    "position": _pairs(
        "Lage/Lagen, Ort/Orte, Platz/Plätze, Stelle/Stellen, lieu/lieux, endroit/endroits, emplacement/emplacements,"
        "posición/posiciones, lugar/lugares, ubicación/ubicaciones, posizione/posizioni, posto/posti, posição/posições,"
        "plaats/plaatsen, plats/platser, miejsce/miejsca, место/места"
    ),
    "background": _pairs(
        "Hintergrund/Hintergründe, Hintergrundfarbe/Hintergrundfarben, fond/fonds, arrière-plan/arrière-plans,"
        "couleur du fond/couleurs du fond, fondo/fondos, color del fondo/colores del fondo, sfondo/sfondi,"
        "fundo/fundos, achtergrond/achtergronden, bakgrund/bakgrunder, tło/tła, фон/фоны"
    ),
    "texture": _pairs(
        "Muster/Muster, Textur/Texturen, Musterung/Musterungen, motif/motifs, patrón/patrones, textura/texturas,"
        "trama/trame, motivo/motivi, padrão/padrões, patroon/patronen, textuur/texturen, mönster/mönster, wzór/wzory"
    ),
}
# `{n}` is a noun of the language.
FOREIGN_PATTERNS: tuple[str, ...] = (
    "{n}",
    "{n}",
    "die {n}",
    "nach {n}",
    "nach der {n}",
    "welche {n}?",
    "welche {n} ist das?",
    "nur die {n}",
    "la {n}",
    "le {n}",
    "par {n}",
    "quelle {n} ?",
    "quelle est la {n} ?",
    "el {n}",
    "por {n}",
    "¿qué {n}?",
    "¿cuál es la {n}?",
    "il {n}",
    "per {n}",
    "quale {n}?",
    "a {n}",
    "qual é a {n}?",
    "de {n}",
    "op {n}",
    "welke {n}?",
)
FOREIGN_SENTENCES: dict[str, tuple[str, ...]] = {
    "color": (
        "Welche Farbe hat das Ding?", "Welche Farbe hat der Gegenstand?", "Welche Farbe hat die Figur im Bild?",
        "In welcher Farbe ist es gemalt?", "Wie ist die Farbe?", "Welche Farbe ist das?",
        "Welche Farbe hat die Sache?", "Nenne die Farbe des Gegenstands.", "Achte auf die Farbe.",
        "Ist es rot oder blau?", "Ordne die Bilder nach ihrer Farbe.", "Quelle est la couleur de la chose ?",
        "De quelle couleur est-ce ?", "De quelle couleur est la chose ?", "De quelle couleur est la figure ?",
        "Quelle couleur a cette image ?", "Regarde la couleur.", "Trie ces images par couleur.",
        "¿Cuál es el color de la cosa?", "¿Qué color tiene la figura?", "¿De qué color es la cosa?",
        "¿De qué color es esto?", "¿De qué color está pintado?", "Dime el color.", "Ordena las fotos por color.",
        "Fíjate en el color.", "Di che colore è la cosa?", "Di che colore è?", "Qual è il colore della figura?",
        "Guarda il colore.", "Que cor tem a coisa?", "De que cor é a figura?", "Welke kleur heeft het ding?",
        "Vilken färg har saken?", "Jakiego koloru jest to?", "Какого цвета предмет?",
    ),
    "shape": (
        "Welche Form hat das Ding?", "Welche Form hat der Gegenstand?", "Welche Gestalt hat die Figur im Bild?",
        "Wie ist es geformt?", "Welche Form ist das?", "Welche Form hat die Sache?", "Welche Figur ist zu sehen?",
        "Nenne die Form des Gegenstands.", "Achte auf die Form.", "Ist es rund oder eckig?",
        "Ordne die Bilder nach ihrer Form.", "Quelle est la forme de la chose ?", "De quelle forme est la figure ?",
        "Quelle forme est-ce ?", "De quelle forme est la chose ?", "Quelle forme a cette image ?", "Regarde la forme.",
        "Trie ces images par forme.", "¿Cuál es la forma de la cosa?", "¿Qué forma tiene la figura?",
        "¿De qué forma es la cosa?", "¿De qué forma es esto?", "¿Qué forma es esta?", "Dime la forma.",
        "Ordena las fotos por forma.", "Fíjate en la forma.", "Di che forma è la cosa?",
        "Qual è la forma della figura?", "Guarda la forma.", "Que forma tem a coisa?", "De que forma é a figura?",
        "Welke vorm heeft het ding?", "Vilken form har saken?", "Jaki to ma kształt?", "Какой формы предмет?",
    ),
    "size": (
        "Wie groß ist das Ding?", "Wie groß ist es?", "Ist es klein oder groß?", "Quelle est la taille de la chose ?",
        "Est-ce petit ou grand ?", "¿Qué tamaño tiene la cosa?", "¿Es grande o pequeño?", "Quanto è grande?",
        "Que tamanho tem a coisa?", "Hoe groot is het ding?",
    ),
    "position": (
        "Wo ist das Ding?", "Wo liegt es?", "In welcher Ecke ist es?", "Où est la chose ?", "Où se trouve la figure ?",
        "¿Dónde está la cosa?", "¿En qué parte está?", "Dove si trova la cosa?", "Onde está a coisa?", "Waar is het?",
    ),
    "background": (
        "Welche Farbe hat der Hintergrund?", "Wie ist der Hintergrund?", "Was ist dahinter?",
        "Quelle est la couleur du fond ?", "De quelle couleur est le fond ?", "¿De qué color es el fondo?",
        "¿Cómo es el fondo?", "Di che colore è lo sfondo?", "Qual é a cor do fundo?",
        "Welke kleur heeft de achtergrond?",
    ),
    "texture": (
        "Welches Muster hat das Ding?", "Ist es gestreift oder einfarbig?", "Quel motif a la chose ?",
        "¿Qué patrón tiene la cosa?", "Che motivo ha la cosa?", "Welk patroon heeft het ding?",
    ),
}  # fmt: skip
# Questions that do not contain the attribute's name; `{v}` and `{w}` are two of its values, `{o}` a thing.
VALUE_QUESTIONS = ("Is {o} {v} or {w}?", "Is it {v}, {w} or something else?", "{v} or {w}?", "Is {o} {v}?", "{v}, {w}")
OWN_QUESTIONS: dict[str, tuple[str, ...]] = {
    "color": (
        "How is {o} colored?", "How is {o} coloured?", "How is {o} painted?", "Which paint was used for {o}?",
        "How would you paint {o}?", "Which crayon would you need for {o}?", "How is {o} tinted?", "painted how?",
        "same colored things", "like-coloured things", "things that are coloured alike", "colorwise", "chromatic",
    ),
    "shape": (
        "How is {o} shaped?", "How is {o} formed?", "How would you outline {o}?", "How many corners does {o} have?",
        "Is {o} round?", "Is {o} angular or round?", "same shaped things", "things that are shaped alike", "geometric",
        "What does {o} look like in outline?", "Which stencil was used for {o}?", "geometrical", "shapewise",
    ),
    "size": (
        "How big is {o}?", "How large is {o}?", "How small is {o}?", "How much room does {o} take?", "how big",
        "Is {o} tiny or huge?", "Is {o} big?", "how large", "things that are equally big", "Tell me how large {o} is.",
    ),
    "position": (
        "Where is {o}?", "Where in the picture is {o}?", "Where does {o} lie?", "Where can {o} be found?", "where",
        "In which part of the picture is {o}?", "In which corner is {o}?", "Is {o} on the left or on the right?",
        "Is {o} at the top or at the bottom?", "Where does {o} stand?",
    ),
    "background": (
        "What is behind {o}?", "On what ground does {o} lie?", "In front of which color is {o}?", "what lies behind",
        "Which color does the background have?", "What colour does the backdrop have?",
        "What color is the background?", "What colour is behind {o}?", "Is the background white or gray?",
    ),
    "texture": (
        "Is {o} striped or plain?", "Is {o} dotted?", "Is {o} checkered, dotted or striped?", "How is {o} patterned?",
        "How is {o} textured?", "Does {o} have stripes?", "Does {o} have dots?", "things that are patterned alike",
    ),
}  # fmt: skip
# What has the attribute.
THINGS = ("object", "thing", "item", "shape", "figure", "form", "drawing", "element", "symbol", "motif", "subject")
