"""Import of T5s in transformers' layout, with a task file that says what the model answers."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from pydantic import JsonValue

from services.core.refusals import Refused
from services.core.text_files import BadFile
from services.jobs.imports.plan import Plan, left_files
from services.jobs.imports.source import Source, read_model_config, read_object
from services.jobs.imports.weights import find_weights, stored_weights
from services.nn.loading import quiet_loading, transformers
from services.nn.model_configs import StoredWeights, faults_of, model_config
from services.predict.data.task_file import read_task_file
from services.predict.model.task_description import TASK_FILE, TaskDescription
from services.predict.tasks import TASKS, Prefixes

KIND = "t5-student"
CONFIG, TOKENIZER, SENTENCEPIECE = "config.json", "tokenizer.json", "spiece.model"
BESIDE_WEIGHTS = (CONFIG, "generation_config.json")
BESIDE_TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


@dataclass(frozen=True)
class T5Import:
    """An import of one source; `task` is a task file or a published task, which a source without `task.json` needs.

    The prefixes are put before each input, as the model was trained with them, to ask for its label and for its
    rationale; None is for a model without rationales.
    """

    source: Source
    task: str | None = None
    label_prefix: str = ""
    rationale_prefix: str | None = None

    @classmethod
    def recognises(cls, config: Mapping[str, Any]) -> bool:
        """Whether a `config.json` is of a T5."""
        return config.get("model_type") == "t5"

    def plan(self) -> Plan:
        """Plan the import without reading weights. Raises Refused for what would not be served rightly."""
        config = self._config()
        weights = find_weights(self.source)
        present = self.source.files
        if self.task is None and TASK_FILE not in present:
            raise Refused(
                f"{self.source.uri} has no {TASK_FILE}: give --task FILE, which says what the model answers, or --task"
                f" {'|'.join(TASKS)}"
            )
        self._description()
        if TOKENIZER not in present and SENTENCEPIECE not in present:
            raise Refused(f"{self.source.uri} has no tokenizer: neither {TOKENIZER} nor {SENTENCEPIECE}")
        taken = [path for path in BESIDE_WEIGHTS if path in present]
        taken += weights.taken_index
        has_tokenizer = TOKENIZER in present
        beside = (TOKENIZER if has_tokenizer else SENTENCEPIECE, *BESIDE_TOKENIZER)
        found = tuple(path for path in beside if path in present)
        taken += [*(found if has_tokenizer else ()), *([TASK_FILE] if self.task is None else ())]
        made = {} if has_tokenizer else {TOKENIZER: SENTENCEPIECE}
        if self.task is not None:
            made[TASK_FILE] = Path(self.task).name
        read = () if has_tokenizer else found
        left = left_files(
            self.source,
            weights,
            {*taken, *read},
            {SENTENCEPIECE: f"{TOKENIZER} says the same", TASK_FILE: "--task wins"},
        )
        facts = {
            **_facts(config, stored_weights(self.source)),
            "weight_bytes": sum(present[file] for file in weights.files),
        }
        return Plan(KIND, ("predict",), tuple(taken), weights, read, made, left, facts)

    def build(self, folder: Path) -> None:
        """Make in the folder, which holds the files that are taken, what the source lacks. Raises Refused."""
        if TOKENIZER not in self.source.files:
            self._make_tokenizer(folder)
        if (description := self._description()) is not None:
            description.write(folder)

    def _description(self) -> TaskDescription | None:
        """Read --task, if it is given. Raises Refused."""
        if self.task is None:
            return None
        task = TASKS.get(self.task)
        if task is None:
            if not Path(self.task).exists():
                raise Refused(f"--task: {self.task} is neither a file nor one of {', '.join(TASKS)}")
            try:
                task = read_task_file(Path(self.task)).to_task()
            except BadFile as error:
                raise Refused(f"--task: {error}") from None
        prefixes = Prefixes(self.label_prefix, self.rationale_prefix or "")
        return TaskDescription.of(task, prefixes, has_rationales=self.rationale_prefix is not None)

    def _config(self) -> Any:
        return model_config(read_model_config(self.source), stored_weights(self.source))

    def _make_tokenizer(self, folder: Path) -> None:
        given = {**read_object(self.source, BESIDE_TOKENIZER[1]), **read_object(self.source, BESIDE_TOKENIZER[0])}
        config = {name: given[name] for name in ("extra_ids", "model_max_length") if name in given}
        with TemporaryDirectory() as looked_in, quiet_loading():
            # transformers takes a SentencePiece model only under this name, from a folder
            shutil.copyfile(self.source.fetch(SENTENCEPIECE), Path(looked_in, SENTENCEPIECE))
            transformers().T5Tokenizer.from_pretrained(looked_in, **config).save_pretrained(folder)


def _facts(config: Any, stored: StoredWeights) -> dict[str, JsonValue]:
    with faults_of(CONFIG, config.to_dict()), stored.bound(), torch.device("meta"), quiet_loading():
        model = transformers().T5ForConditionalGeneration(config)
    is_gated = "gated" in config.feed_forward_proj
    return {
        "architecture": "t5 v1.1" if is_gated else "t5",
        "num_parameters": sum(weight.numel() for weight in model.parameters()),
    }
