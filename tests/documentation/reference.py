"""Tables of settings, metrics and commands as the code has them."""

import functools
import json
from dataclasses import dataclass
from typing import Any

import typer
from prometheus_client.metrics import MetricWrapperBase

from gateway.settings import GatewaySettings
from services.cli.catalogue import COLUMNS, catalogue
from services.cli.delegation import Delegate
from services.cli.main import app
from services.core.metrics import Metrics
from services.core.settings import (
    COMMAND_LINE_VARIABLES,
    SHARED_PREFIX,
    ProcessSettings,
    ServiceSettings,
    is_shared,
    known_variables,
    own_prefix_of,
)
from services.embed.settings import EmbedSettings
from services.generate.settings import GenerateSettings
from services.predict.settings import PredictSettings
from services.score.settings import ScoreSettings
from tests.documentation.blocks import ROOT, table

# By which the chart refuses misspelt settings before a process would.
CHART_SETTINGS = ROOT / "charts" / "fovea" / "settings.json"

PROCESSES: dict[str, type[ProcessSettings]] = {
    "EMBED": EmbedSettings,
    "GENERATE": GenerateSettings,
    "PREDICT": PredictSettings,
    "SCORE": ScoreSettings,
    "GATEWAY": GatewaySettings,
}


@dataclass(frozen=True)
class SettingRow:
    """One row of a settings table in the documentation; `default` is None for a setting that must be given."""

    variable: str
    type: str
    default: str | None
    description: str


def describe_settings(settings_cls: type[ProcessSettings]) -> list[SettingRow]:
    """Return every setting of a process in the order of its class, shared ones first."""
    return [
        SettingRow(
            variable=(SHARED_PREFIX if is_shared(name) else own_prefix_of(settings_cls)) + name.upper(),
            type=_type_name(field.annotation),
            default=None if field.is_required() else _as_given(field.get_default()),
            description=field.description or _inherited_description(settings_cls, name),
        )
        for name, field in settings_cls.model_fields.items()
    ]


def chart_settings() -> str:
    """Return the names of the settings of each process of the chart, and those that all have."""
    shared = known_variables(ServiceSettings) - COMMAND_LINE_VARIABLES - {f"{SHARED_PREFIX}PORT"}
    own = {name.lower(): known_variables(known) - shared - COMMAND_LINE_VARIABLES for name, known in PROCESSES.items()}
    names = {"shared": shared, "commands": COMMAND_LINE_VARIABLES, **own}
    return json.dumps({name: sorted(variables) for name, variables in names.items()}, indent=1) + "\n"


def _as_given(default: Any) -> str:
    """Format a default as in the environment, where a tuple is a comma-separated list."""
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _inherited_description(settings_cls: type[ProcessSettings], field_name: str) -> str:
    """Return the base class's description, for a process that only changes the default (of its port, say)."""
    classes = [one for one in settings_cls.__mro__ if issubclass(one, ProcessSettings)]
    fields = [one.model_fields[field_name] for one in classes if field_name in one.model_fields]
    return next((field.description for field in fields if field.description), "")


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, type):
        return annotation.__name__
    return str(annotation).replace("typing.", "").replace("pydantic.types.SecretStr", "str")


def settings() -> dict[str, SettingRow]:
    return {row.variable: row for known in PROCESSES.values() for row in describe_settings(known)}


def settings_table() -> str:
    """Return the table of all settings; a shared one names the services that have a default of their own."""
    rows = []
    for row in settings().values():
        default = f"`{row.default}`" if row.default not in (None, "None", "") else ""
        for name, known in PROCESSES.items():
            own = next((one.default for one in describe_settings(known) if one.variable == row.variable), row.default)
            if own != row.default:
                variable = own_prefix_of(known) + row.variable.removeprefix(SHARED_PREFIX)
                default += f"; `{own}` for `{name.lower()}` (`{variable}`)"
        rows.append((f"`{row.variable}`", row.type.replace("|", "or"), default, row.description))
    return table(("variable", "type", "default", "meaning"), rows)


def metrics() -> dict[str, MetricWrapperBase]:
    """By the name that a scraper sees; a histogram's is that of its `_bucket`, `_sum` and `_count`."""
    named = {}
    for metric in vars(Metrics("docs")).values():
        if isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            named[f"{family.name}_total" if family.type == "counter" else family.name] = metric
    return named


def metrics_table() -> str:
    rows = []
    for name, metric in metrics().items():
        (family,) = metric.describe()
        # The library tells a metric's labels in public only once one has a value.
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)
        rows.append((f"`{name}`", family.type, labels, family.documentation))
    return table(("metric", "type", "labels", "meaning"), rows)


@functools.cache
def subcommands(words: tuple[str, ...], program: typer.Typer = app) -> dict[str, str]:
    """The commands of `fovea WORDS`, or of another program's, with the summary of each."""
    command: Any = typer.main.get_command(program)
    for word in words:
        command = command.commands[word]
        command = command.load() if isinstance(command, Delegate) else command
    listed = getattr(command, "commands", {})
    return {name: " ".join((one.help or "").partition("\n\n")[0].split()) for name, one in listed.items()}


def commands_table() -> str:
    def rows(words: tuple[str, ...]) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []
        for name, summary in subcommands(words).items():
            command = (*words, name)
            below = rows(command)
            found += below or [(f"`fovea {' '.join(command)}`", summary.replace("|", "or"))]
        return found

    return table(("command", "description"), rows(()))


def models_table() -> str:
    """Return the catalogue of `fovea models`, with the page of each model and the command that imports it."""
    rows = []
    for row in catalogue().values():
        name, *cells = row.cells()
        page = row.at or f"https://huggingface.co/{row.source.removeprefix('hf://').partition('@')[0]}"
        figures = f"[measured](../{row.figures})" if row.figures else ""
        rows.append((f"[`{name}`]({page})", *cells, figures, f"`{row.command}`"))
    return table((*COLUMNS, "figures", "import"), rows)
