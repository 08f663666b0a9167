"""Imports for a sweep's cells, done once in the process from which theirs are forked."""

from services.nn.loading import transformers
from services.predict.training.train import run_student

CLASSES = [
    getattr(transformers(), name)
    for name in ("AutoConfig", "AutoTokenizer", "PreTrainedTokenizerFast", "T5Config", "T5ForConditionalGeneration")
]

__all__ = ["CLASSES", "run_student"]
