"""The parts of a Dockerfile that tests check: its stages and their instructions."""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Stage:
    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [rest for word, rest in self.instructions if word == instruction]

    def environment(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for line in self.all("ENV") for pair in shlex.split(line))


class Dockerfile:
    def __init__(self, name: str) -> None:
        text = (ROOT / "docker" / name).read_text()
        lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        self.arguments: dict[str, str] = {}
        self.stages: dict[str, Stage] = {}
        stage: Stage | None = None
        for line in re.sub(r"\s*\\\n\s*", " ", lines).splitlines():
            word, _, rest = line.strip().partition(" ")
            if word == "FROM":
                base, name = re.split(r" AS ", rest)
                stage = self.stages[name] = Stage(name, base)
            elif word == "ARG":
                self.arguments.setdefault(*rest.split("=", 1))
            elif word and stage:
                stage.instructions.append((word, rest))

    def final(self, target: str) -> list[Stage]:
        """The stages that an image consists of, the target last."""
        stage = self.stages[target]
        return [*(self.final(stage.base) if stage.base in self.stages else []), stage]

    def environment(self, target: str) -> dict[str, str]:
        return {name: value for stage in self.final(target) for name, value in stage.environment().items()}

    def says(self, target: str, instruction: str) -> str:
        """The instruction that counts in the target: its last."""
        return [rest for stage in self.final(target) for rest in stage.all(instruction)][-1]

    def extras(self) -> set[str]:
        """The extras of Fovea that are installed."""
        installed = {
            word
            for stage in self.stages.values()
            for run in stage.all("RUN")
            for word in re.findall(r'"\.\[(.*?)\]"', run)
        }
        return {
            extra
            for names in installed
            for extra in names.replace("$EXTRAS", self.arguments.get("EXTRAS", "")).split(",")
        }
