"""`python -m services.score`: serve scores with the settings of the environment."""

import sys

from services.core.serving.server import run
from services.core.settings import read_settings
from services.score.app import create_score
from services.score.settings import ScoreSettings

if __name__ == "__main__":
    sys.exit(run(create_score, read_settings(ScoreSettings)))
