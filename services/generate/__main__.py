"""`python -m services.generate`: serve answers and rankings with the settings of the environment."""

import sys

from services.core.serving.server import run
from services.core.settings import read_settings
from services.generate.app import create_generate
from services.generate.settings import GenerateSettings

if __name__ == "__main__":
    sys.exit(run(create_generate, read_settings(GenerateSettings)))
