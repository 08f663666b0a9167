"""A recipe: one TOML file that leads from captions to a published data set."""

from pathlib import Path
from typing import Literal

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.core.refusals import Refused, first_complaint
from services.core.text_files import BadFile, read_toml
from services.curate.authoring.job import GenerateOptions
from services.curate.data.captions import Fields
from services.curate.refinement.loading import named_references
from services.curate.refinement.scores import RefineOptions
from services.jobs.options import output_folder


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CaptionSource(Strict):
    """A file of captions: COCO's, or JSON lines with these fields."""

    file: Path
    caption_field: str = Fields.caption
    image_field: str = Fields.image
    id_field: str = Fields.id
    second_field: str = Fields.second
    limit: int | None = Field(None, ge=1)

    @property
    def fields(self) -> Fields:
        return Fields(self.caption_field, self.image_field, self.id_field, self.second_field)


class ReviewOptions(Strict):
    """People's verdicts, and what becomes of pairs without one."""

    verdicts: Path
    unreviewed: Literal["keep", "refuse"] = "keep"


class Recipe(Strict):
    """The steps' options. Without `refine` or `review`, that step is left out. Paths are relative to its folder."""

    name: str = Field(min_length=1)
    output: Path
    licence: str | None = None
    captions: CaptionSource
    generate: GenerateOptions
    refine: RefineOptions | None = None
    review: ReviewOptions | None = None

    def below(self, folder: Path) -> "Recipe":
        """Return the recipe with its paths below a folder, unless they are absolute."""
        review, generate = self.review, self.generate
        captions = self.captions.model_copy(update={"file": folder / self.captions.file})
        if review is not None:
            review = review.model_copy(update={"verdicts": folder / review.verdicts})
        paths = {name: path for name in ("prompts", "wordnet") if (path := getattr(generate, name)) is not None}
        generate = generate.model_copy(update={name: folder / path for name, path in paths.items()})
        changed = {"output": folder / self.output, "captions": captions, "review": review, "generate": generate}
        return self.model_copy(update=changed)


def read_recipe(path: Path) -> Recipe:
    """Read a recipe. Raises BadFile."""
    try:
        recipe = Recipe.model_validate(read_toml(path))
        recipe.generate.written_kinds() if recipe.generate.method == "llm" else recipe.generate.rule_kinds()
        if recipe.refine is not None:
            named_references(recipe.refine.model)
        below = recipe.below(path.absolute().parent)
        output_folder(below.output)
    except ValidationError as error:
        raise BadFile(f"{path}: {first_complaint(error, 'the recipe')}") from None
    except typer.BadParameter as error:
        raise BadFile(f"{path}: output: {error}") from None
    except BadFile:
        raise
    except Refused as error:
        raise BadFile(f"{path}: refine.model: {error}") from None
    except ValueError as error:
        raise BadFile(f"{path}: {error}") from None
    return below
