"""Time of a decision by students and by a language model: `python -m benchmarks.decision_cost --data DATA`.

The inputs are those of `benchmarks.distill_decisions`, each with its question. Time depends on shapes and not on what
was learnt, so all weights are random: of students from scratch in two shapes, with a tokenizer learnt from the inputs,
and of a stand-in for a small teacher of today in the shape of Qwen2.5-0.5B, which reads a prompt as long as `generate`
would make of the same question. The answers mean nothing. All decide one input at a time, in turn, on one thread of one
process, whose time on the processor is taken: other work on the machine does not count.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.distill_decisions import LOGS
from benchmarks.record import record, summary
from services.nn.loading import transformers
from services.predict.engine import PredictEngine
from services.predict.model.student import Student
from services.predict.model.task_description import TaskDescription
from services.predict.tasks import NO_PREFIXES, Task
from services.predict.training.initialisation import SHAPES, build_tokenizer, create_t5

STUDENTS = ("tiny", "base-v1.1")
VOCAB_SIZE = 2_000
NUM_LEARNT, NUM_ROUNDS = 500, 3
# Of English text in a tokenizer of 150,000 tokens, and of the chat template around it.
CHARACTERS_PER_TOKEN, TEMPLATE_TOKENS = 4, 20
STAND_IN = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
}


def stand_in() -> Any:
    """A language model that has learnt nothing."""
    return transformers().Qwen2ForCausalLM(transformers().Qwen2Config(**STAND_IN)).eval()


def student(t5: Any, texts: list[str], labels: tuple[str, ...]) -> PredictEngine:
    """A student that has learnt nothing but its tokens."""
    tokenizer = build_tokenizer([*texts, *labels], VOCAB_SIZE)
    task = Task("decision", ("input",), "\n", labels=labels)
    description = TaskDescription.of(task, NO_PREFIXES, has_rationales=False)
    return PredictEngine(Student(t5, tokenizer), description)


def prompt_tokens(text: str, asked: dict[str, Any]) -> int:
    """Estimate the tokens of the prompt that `generate` makes of a question."""
    options = "\n".join(f"A. {one['value']}" for one in asked.get("choices", ()))
    return TEMPLATE_TOKENS + len(f"{text}\n\n{asked['instructions']}\n{options}") // CHARACTERS_PER_TOKEN


def timed(teacher: Any, t5s: dict[str, Any], texts: list[str], asked: dict[str, Any]) -> dict[str, Any]:
    """Time each model on the same inputs in turn, in milliseconds of the processor; the first input warms up."""
    labels = tuple(one["value"] for one in asked.get("choices", ())) or ("true", "false")
    students = {shape: student(t5, texts, labels) for shape, t5 in t5s.items()}
    seconds: dict[str, list[float]] = {name: [] for name in (*STUDENTS, "stand_in")}
    num_tokens = []
    for text in texts[: NUM_ROUNDS + 1]:
        for shape, engine in students.items():
            seconds[shape].append(_seconds(partial(_decide, engine, text)))
        num_tokens.append(prompt_tokens(text, asked))
        input_ids = torch.randint(STAND_IN["vocab_size"], (1, num_tokens[-1]))
        seconds["stand_in"].append(_seconds(partial(teacher, input_ids, logits_to_keep=1)))
    figures: dict[str, Any] = {
        name: {
            "ms": summary([1000 * one for one in values[1:]]),
            "times_faster": summary([a / b for a, b in zip(seconds["stand_in"][1:], values[1:], strict=True)]),
        }
        for name, values in seconds.items()
    }
    return {**figures, "stand_in_tokens": sum(num_tokens[1:]) / NUM_ROUNDS}


def _decide(student: PredictEngine, text: str) -> None:
    student.run_batch([student.prepare({"input": text})])


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    with torch.inference_mode():
        work()
    return time.process_time() - began


def main(data: Annotated[Path, typer.Option(help="Folder of the published data sets.")]) -> None:
    """Time decisions about the inputs of each log, and record them."""
    torch.set_num_threads(1)
    teacher, t5s = stand_in(), {shape: create_t5(SHAPES[shape], VOCAB_SIZE, 0) for shape in STUDENTS}
    measured = {}
    for name, (decided, asked) in LOGS.items():
        measured[name] = timed(teacher, t5s, [text for text, _, _ in islice(decided(data), NUM_LEARNT)], asked)
        print(name, measured[name], flush=True)
    parameters = {name: model.num_parameters() for name, model in {**t5s, "stand_in": teacher}.items()}
    record("decision_cost", {"threads": 1, "parameters": parameters, "logs": measured})


if __name__ == "__main__":
    typer.run(main)
