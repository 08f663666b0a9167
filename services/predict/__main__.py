"""`python -m services.predict`: serve predictions with the settings of the environment."""

import sys

from services.core.memory import allocate_in_one_arena
from services.core.serving.server import run
from services.core.settings import read_settings
from services.predict.app import create_predict
from services.predict.settings import PredictSettings

if __name__ == "__main__":
    allocate_in_one_arena()
    sys.exit(run(create_predict, read_settings(PredictSettings)))
