"""Measure the gain of training on hackable and on refined hard negatives: Tables 4.5, C.2, C.4 on generated scenes.

    python -m benchmarks.hard_negative_trainings OUTPUT [--steps 60] [--limit 300] [--quick]

Every part is a command; what a folder already has is not made again, so a stopped run is simply started anew.

1. Scenes with captions for training and for the test, and negatives of both by ARO's and CREPE's rules.
2. Two blind models of the training captions, by which both sets are refined (Algorithm 1), and audits of the test.
3. A CLIP that sees things and reads bags of words, as large CLIPs do: the packaged starter, tuned with CLIP's loss on
   the training captions with their words in any order.
4. Tunings of it with and without hard negatives (NegCLIP), all with the same images, captions and steps.
5. Their accuracy on the test, before and after refinement, and the record for the documentation.
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from starters.curate.scenes import written_scenes

STARTER = Path("services/score/starter/fsc-clip-scenes")
BASE, CONTROL, PACKAGED = "bags", "clip", "packaged starter"
# Names of the test before and after refinement in tables, and of the folders of their pairs.
TESTS = {"rules": "generated", "rules, refined": "refined"}
SIDE = 64
ORDERS = 3  # of a caption's words
FORMS = ("replace", "swap", "negate")
# Refinement leaves no denials, which `no` gives away.
REFINED_FORMS = ("replace", "swap")
# The forms of the hard negatives of each tuning, and whether they are refined.
TUNINGS = {
    **{form: ((form,), False) for form in FORMS},
    "all": (FORMS, False),
    **{f"{form}-refined": ((form,), True) for form in REFINED_FORMS},
}
RECIPE = """method = "negclip"
base = "bags"
negatives = ["negclip"]
batch_size = 32
learning_rate = 3e-4
warmup_steps = 10
weight_decay = 0.1
steps = {steps}
"""
SCENES = """name = "Rules on generated scenes, {part}"
output = "{part}"

[captions]
file = "{captions}"

[generate]
method = "rules"
"""


@dataclass(frozen=True)
class Effort:
    """Numbers of scenes, steps of each training, pairs of each type in the test, and scenes of general tasks."""

    train: int = 4000
    test: int = 2500
    blind_steps: int = 1500
    base_steps: int = 150
    steps: int = 60
    limit: int = 300


QUICK = Effort(train=60, test=40, blind_steps=4, base_steps=2, steps=2, limit=10)
SEEDS = {"train": 11, "test": 12}


@dataclass(frozen=True)
class Run:
    """One run of everything, in a folder."""

    folder: Path
    effort: Effort

    def scenes(self, part: str) -> Path:
        """The folder of a part's images and captions."""
        return self.folder / part / f"scenes-{getattr(self.effort, part)}-{SEEDS[part]}-{SIDE}"

    def pairs(self, part: str, name: str) -> Path:
        return self.folder / part / name / "pairs.jsonl"

    def checkpoint(self, name: str) -> Path:
        return self.folder / "runs" / name / "checkpoint"

    def blind(self) -> list[str]:
        """The options that name the blind models."""
        models = [f"--model={bias}={self.folder / f'blind-{bias}'}/checkpoint" for bias in ("plausibility", "grammar")]
        return [*models, f"--cache={self.folder / 'cache'}"]

    def make(self) -> None:
        """Make everything that is not there."""
        for part in SEEDS:
            self._make_scenes(part)
        captions = self.scenes("train") / "captions.jsonl"
        for bias in ("plausibility", "grammar"):
            output = self.folder / f"blind-{bias}"
            options = ["--field=caption", "--field=second_caption", f"--steps={self.effort.blind_steps}"]
            asked = ["train", "blind", bias, f"--texts={captions}", *options, "--no-publish", f"--output={output}"]
            fovea(output / "checkpoint" / "checkpoint.json", asked, program="starters")
        for part in SEEDS:
            folder = self.folder / part / "refined"
            asked = ["curate", "refine", str(self.pairs(part, "generated")), *self.blind(), f"--output={folder}"]
            fovea(folder / "DATA_CARD.md", asked)
        for name in TESTS.values():
            asked = ["curate", "audit", str(self.pairs("test", name)), *self.blind()]
            fovea(self.audit(name) / "audit.json", [*asked, f"--output={self.audit(name)}"])
        self._train(captions)
        self._evaluate()
        self._record()

    def audit(self, name: str) -> Path:
        return self.folder / f"audit-{name}"

    def _make_scenes(self, part: str) -> None:
        recipe = self.folder / f"{part}.toml"
        captions = written_scenes(self.scenes(part), getattr(self.effort, part), seed=SEEDS[part], side=SIDE)
        recipe.write_text(SCENES.format(part=part, captions=captions), encoding="utf-8")
        fovea(self.pairs(part, "generated"), ["curate", "run", str(recipe)])

    def _train(self, captions: Path) -> None:
        bags = captions.with_name("bags.jsonl")
        bags.write_text("".join(bags_of_words(captions.read_text(encoding="utf-8").splitlines())), encoding="utf-8")
        recipe = self.folder / "negclip.toml"
        recipe.write_text(RECIPE.format(steps=self.effort.steps), encoding="utf-8")
        same = ["--recipe=clip-laion-coco", "--batch-size=32", "--set=learning_rate=5e-4", f"--base={STARTER}"]
        self._tune(BASE, bags, [*same, f"--steps={self.effort.base_steps}"])
        tuned = [f"--recipe={recipe}", f"--base={self.checkpoint(BASE)}"]
        self._tune(CONTROL, captions, [*tuned, "--set=method=clip"])
        for name, (forms, is_refined) in TUNINGS.items():
            stored = f"--stored={self.pairs('train', 'refined' if is_refined else 'generated')}"
            self._tune(name, captions, [*tuned, stored, *(f"--negatives={form}" for form in forms)])

    def _tune(self, name: str, table: Path, options: list[str]) -> None:
        same = ["--data=folder", f"--images={table}", "--precision=no", "--no-publish"]
        asked = ["train", "fsc-clip", *options, *same, f"--output={self.checkpoint(name).parent}"]
        fovea(self.checkpoint(name) / "checkpoint.json", asked)

    def _models(self) -> dict[str, Path]:
        names = (BASE, CONTROL, *TUNINGS)
        return {PACKAGED: STARTER, **{name: self.checkpoint(name) for name in names}}

    def _results(self, name: str) -> Path:
        return self.folder / f"results-{name}.json"

    def _evaluate(self) -> None:
        for benchmark, name in TESTS.items():
            results = self._results(name)
            told = json.loads(results.read_text()) if results.exists() else []
            wanted = self._models().keys() - {one["judge"] for one in told}
            models = [f"--model={judge}={path}" for judge, path in self._models().items() if judge in wanted]
            data = [f"--data={self.pairs('test', name)}", f"--images={self.scenes('test')}"]
            asked = ["evaluate", "compositionality", "pairs", *data, f"--benchmark={benchmark}", *models]
            if models:
                fovea(None, [*asked, f"--limit={self.effort.limit}", f"--output={results}"])

    def _record(self) -> None:
        options = [f"--results={self._results(name)}" for name in TESTS.values()]
        options += [f"--audit={benchmark}={self.audit(name)}" for benchmark, name in TESTS.items()]
        options += [f"--checkpoint={name}={path}" for name, path in self._models().items()]
        options += [f"--control={CONTROL}", *(f"--seeing={name}" for name in (PACKAGED, BASE, CONTROL))]
        record = [str(self.folder / "record.json"), *options, f"--csv={self.folder / 'models.csv'}"]
        command = [sys.executable, "-m", "starters.curate.recorded_trainings", *record]
        subprocess.run(command, check=True)


def bags_of_words(lines: Iterable[str]) -> Iterable[str]:
    """Make a table whose captions have their words in other orders, of one with a caption a line."""
    generator = random.Random(0)
    for line in lines:
        record = json.loads(line)
        words, captions = record["caption"].split(), []
        for _ in range(ORDERS):
            generator.shuffle(words)
            captions.append(" ".join(words))
        yield json.dumps({"filename": record["filename"], "captions": captions}) + "\n"


def fovea(made: Path | None, arguments: list[str], program: str = "services.cli.main") -> None:
    """Run a command of `fovea` or of another program, unless the file that it makes is there."""
    if made is None or not made.exists():
        subprocess.run([sys.executable, "-m", program, *arguments], check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path, help="Folder for everything.")
    parser.add_argument("--steps", type=int, default=Effort.steps, help="Steps of each tuning.")
    parser.add_argument("--limit", type=int, default=Effort.limit, help="Pairs of each type in the test.")
    parser.add_argument("--quick", action="store_true", help="A little of everything, to see that it works.")
    arguments = parser.parse_args()
    effort = QUICK if arguments.quick else Effort(steps=arguments.steps, limit=arguments.limit)
    arguments.output.mkdir(parents=True, exist_ok=True)
    Run(arguments.output.resolve(), effort).make()


if __name__ == "__main__":
    main()
