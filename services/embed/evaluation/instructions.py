"""Instructions of the protocols: the dissertation's Table D.3, verbatim; ColorShape's are `TEST_INSTRUCTIONS`."""

from typing import Literal

CELEBA_IDENTITY = "Gender, age, eye color, hair color, face shape, facial hair of the person."

SUGARCREPE = {
    "replace_obj": "Focus on the presence of objects in the image.",
    "replace_att": "Focus on the color, patterns and other attributes of the objects in the image.",
    "replace_rel": "What are the relationships between the objects in the image?",
    "swap_obj": "What are the actions, states, colors, patterns and relationships of the objects in the image?",
    "swap_att": "What kind of objects are in the image?",
    "add_obj": "What is not in the image?",
    "add_att": "What is not in the image?",
}

MMVP = {
    "Orientation": "Describe the orientation, position, or the direction of the object.",
    "Presence": "Focus on the presence of objects in the image.",
    "State": "Focus on the specific state or the condition of the objects in the image.",
    "Quantity": "Focus on the quantity of the objects in the image.",
    "Spatial": "Describe the spatial relationship and the positions of the objects in the image.",
    "Color": "Focus on the color of the objects in the image.",
    "Structural": "Describe the state of the objects in the image.",
    "Text": "Focus on the texts on the objects in the image.",
    "Camera": "Describe the perspective and view from which the photo is taken.",
}

Kind = Literal["noun", "adjective"]

# Table D.3 has different questions for nouns and adjectives and one example of each (the first and the third here); the
# other attributes are assigned to the question that is grammatical.
CELEBA_ATTRIBUTES: dict[str, Kind] = {
    "Arched Eyebrows": "noun",
    "Bags Under Eyes": "noun",
    "Bald": "adjective",
    "Bangs": "noun",
    "Black Hair": "noun",
    "Blond Hair": "noun",
    "Blurry": "adjective",
    "Brown Hair": "noun",
    "Bushy Eyebrows": "noun",
    "Double Chin": "noun",
    "Eyeglasses": "noun",
    "Goatee": "noun",
    "Gray Hair": "noun",
    "Male": "adjective",
    "Mouth Slightly Open": "noun",
    "Mustache": "noun",
    "No Beard": "noun",
    "Oval Face": "noun",
    "Pale Skin": "noun",
    "Rosy Cheeks": "noun",
    "Sideburns": "noun",
    "Smiling": "adjective",
    "Straight Hair": "noun",
    "Wavy Hair": "noun",
    "Wearing Earrings": "adjective",
    "Wearing Hat": "adjective",
    "Wearing Lipstick": "adjective",
    "Wearing Necklace": "adjective",
    "Wearing Necktie": "adjective",
}


def celeba_attribute(attribute: str) -> str:
    """The question about one of CELEBA_ATTRIBUTES."""
    if CELEBA_ATTRIBUTES[attribute] == "noun":
        return f"Does the person in the image have {attribute.lower()}?"
    return f"Is the person in the image {attribute.lower()}?"


def focus_on_attribute(attribute: str) -> str:
    """GeneCIS, "Focus attribute"."""
    return f"Focus on the {attribute}."


def focus_on_object(name: str) -> str:
    """GeneCIS, "Focus object"."""
    return f"Is there {name}?"


def type_of(category: str) -> str:
    """ImageNet-Subset and the fine-grained data sets."""
    return f"What type of {category} is in the image?"
