"""`python -m gateway`: the one place that reads the gateway's environment."""

import sys

from gateway.app import create_gateway
from gateway.settings import GatewaySettings
from services.core.server import run
from services.core.settings import read_settings

if __name__ == "__main__":
    sys.exit(run(create_gateway, read_settings(GatewaySettings)))
