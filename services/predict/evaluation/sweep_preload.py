"""Imports of the cells of a sweep, whose processes start from one that has done them."""

from services.nn.loading import declare_torchvision_operators

declare_torchvision_operators()

from transformers import (  # noqa: E402
    AutoConfig,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from services.predict.training.runs import run_student  # noqa: E402

__all__ = [
    "AutoConfig",
    "AutoTokenizer",
    "PreTrainedTokenizerFast",
    "T5Config",
    "T5ForConditionalGeneration",
    "run_student",
]
