"""`python3 docker/looked_up.py sbom.json audit.json`: fail unless pip-audit looked up every package of the SBOM.

pip-audit skips what its service does not know, and ends with status 0 even where that is all. Only Fovea itself and
builds of an index of their own, such as torch 2.13.0+cpu, are known to no service; they are named.
"""

import json
import sys
from pathlib import Path


def main(sbom: str, audit: str) -> int:
    components = {one["name"].lower(): one["version"] for one in json.loads(Path(sbom).read_text())["components"]}
    asked = json.loads(Path(audit).read_text())["dependencies"]
    found = {one["name"].lower() for one in asked if "skip_reason" not in one}
    missing = {name: version for name, version in components.items() if name not in found}
    unexpected = [name for name, version in missing.items() if name != "fovea-serving" and "+" not in version]
    told = ", ".join(f"{name} {version}" for name, version in missing.items())
    looked_up = f"{len(components) - len(missing)} of {len(components)} packages were looked up"
    sys.stdout.write(f"{looked_up}{told and f'; not: {told}'}\n")
    return 1 if unexpected or not found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
