"""Recipes: the hyper-parameters of a training in TOML files, published with its package or a user's own."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

import typer
from pydantic import ValidationError

from services.core.refusals import first_complaint
from services.core.text_files import read_toml

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change of a key of the recipe, such as `learning_rate=1e-4`. Repeatable."),
]
RecipeName = Annotated[str, typer.Option(help="Name of a recipe, or a TOML file.")]


class PublishedRecipe:
    """The base of dataclasses whose published values are the TOML files in `folder` of `package`."""

    package: ClassVar[str]
    folder: ClassVar[str] = "recipes"
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def known_keys(cls) -> frozenset[str]:
        """Name the values of a recipe."""
        return frozenset(field.name for field in fields(cls))

    @classmethod
    def names(cls) -> list[str]:
        """List the names of the recipes included with the package."""
        published = cls._folder().iterdir() if cls._folder().is_dir() else ()
        return sorted(path.name.removesuffix(".toml") for path in published if path.name.endswith(".toml"))

    @classmethod
    def read(cls, name: str | None) -> Self:
        """Read a recipe of the package by name, or a TOML file; None are the defaults.

        Raises ValueError, naming unknown values.
        """
        if name is None:
            return cls()
        if name.endswith(".toml"):
            values = read_toml(Path(name))
        elif name in cls.names():
            values = read_toml(cls._folder() / f"{name}.toml")
        else:
            raise ValueError(f"there is no recipe {name!r}; available: {', '.join([*cls.names(), 'a .toml file'])}")
        if unknown := values.keys() - cls.known_keys():
            raise ValueError(f"recipe {name} has unknown keys: {', '.join(sorted(unknown))}")
        try:
            return cls(**values)
        except ValidationError as error:
            raise ValueError(f"recipe {name}: {first_complaint(error, name)}") from None

    @classmethod
    def _folder(cls) -> Any:
        return files(cls.package) / cls.folder


RecipeT = TypeVar("RecipeT", bound=PublishedRecipe)


def chosen_recipe(
    kind: type[RecipeT], name: str | None, overrides: Sequence[str] | None, changes: Mapping[str, Any]
) -> RecipeT:
    """Read a recipe and change keys of it, by `--set` and by options of their own that are not None.

    Raises BadParameter for an unknown recipe, an unknown key or a value that the recipe refuses.
    """
    known = kind.known_keys()
    changed = {key: value for key, value in changes.items() if value is not None}
    for override in overrides or ():
        key, equals, text = override.partition("=")
        if not equals or key not in known:
            raise typer.BadParameter(f"{override!r} is not KEY=VALUE of {', '.join(sorted(known))}", param_hint="--set")
        changed[key] = _toml_value(text)
    if "epochs" in changed:  # a recipe's own steps would count in their place
        if "steps" in changed:
            raise typer.BadParameter("both say how long to train: give one", param_hint="'--steps' / '--epochs'")
        changed["steps"] = None
    try:
        recipe = kind.read(name)
        if "base" in changed:  # the recipe's pretrained weights belong to its own base
            changed = {"pretrained": None, **changed}
        return replace(recipe, **changed)
    except ValidationError as error:
        raise typer.BadParameter(first_complaint(error, "recipe")) from None
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None


def _toml_value(text: str) -> Any:
    """Read a value as a TOML file has it, or a word without quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
