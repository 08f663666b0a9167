"""`python -m gateway`: the one place that reads the gateway's environment."""

import sys

from gateway.app import create_gateway
from gateway.settings import GatewaySettings
from services.core.serving.server import run
from services.core.settings import read_settings

if __name__ == "__main__":
    settings = read_settings(GatewaySettings)
    client_share = 1.0 if settings.trusted_proxies else settings.client_connection_share
    sys.exit(run(create_gateway, settings, client_share=client_share))
