"""Imports of services and trainings, done once in the process from which those of tests are forked."""

from services.embed.app import create_embed
from services.generate.app import create_generate
from services.nn.loading import transformers
from services.predict.app import create_predict
from services.score.app import create_score
from services.score.training.train import fsc_clip

NAMES = (
    "AutoConfig",
    "AutoTokenizer",
    "LlamaForCausalLM",
    "PreTrainedTokenizerFast",
    "T5Config",
    "T5ForConditionalGeneration",
)
CLASSES = [getattr(transformers(), name) for name in NAMES]

__all__ = ["CLASSES", "create_embed", "create_generate", "create_predict", "create_score", "fsc_clip"]
