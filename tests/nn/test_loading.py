"""What a service imports to load a checkpoint, in a process of its own: this one has imported everything already."""

import subprocess
import sys

import pytest

# Of these no packaged checkpoint needs anything; together they would take longer to import than all that is needed.
UNNEEDED = ("torch._dynamo", "torch.distributed.tensor", "scipy", "accelerate", "timm", "redis")
LOAD = """
import sys
from pathlib import Path
import gateway.app, services.score.app
from services.nn.devices import DeviceOptions
from services.embed.model.engines import ENGINES
from services.generate.engine import EngineOptions, GenerateEngine
from services.predict.engine import PredictEngine
from services.score.engine import ScoreEngine

starter, cpu = "services/{}/starter/{}".format, DeviceOptions("cpu", "auto", 0)
def check(engine):
    engine.warm_up()
    engine.self_check()

check(ScoreEngine.load(Path(starter("score", "fsc-clip-scenes")), cpu))
check(ENGINES["focallens-clip"].load(Path(starter("embed", "focallens-shapes")), options=cpu))
check(PredictEngine.load(Path(starter("predict", "word-problems")), options=cpu))
unneeded = {"sympy"} & sys.modules.keys()
check(GenerateEngine.load(Path(starter("generate", "litm-facts")), EngineOptions(cpu)))
unneeded |= set(sys.argv[1:]) & sys.modules.keys()

import torch._dynamo, torch._dynamo.utils, transformers.models.bert
from services.nn.clip_model import open_clip

assert callable(torch._dynamo.optimize) and torch._dynamo.utils.counters is not None, "the compiler can be imported"
assert transformers.models.bert.BertConfig is transformers.BertConfig
assert transformers.models.t5.T5Config is transformers.T5Config
assert open_clip().hf_model.transformers is transformers and open_clip().timm_model.timm.create_model
print(*unneeded)
"""


@pytest.mark.process
def test_a_service_loads_its_packaged_checkpoints_without_packages_that_none_of_them_needs() -> None:
    done = subprocess.run([sys.executable, "-c", LOAD, *UNNEEDED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
