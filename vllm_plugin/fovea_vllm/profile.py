"""`python -m fovea_vllm.profile calibration.json [DOCUMENTS [TOKENS]]`: a checkpoint's profile as `vllm_xargs`.

Prints the fields that are the same for all requests, for a bias of `cached` with the table for so many documents of so
many tokens each; and to stderr which fields a request adds.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fovea_vllm.estimates import BIAS, BIAS_TABLE, CONTENTS, QUESTION, REL_HEADS, REL_LAYERS, TEMPERATURE
from fovea_vllm.request import DOCUMENTS, FIRST_ROW, LAYERS


def fields_of(profile: Mapping[str, Any], num_documents: int = 0, num_tokens: int = 100) -> dict[str, Any]:
    """Name a profile's settings as the plug-in does. Raises ValueError for one that the server cannot estimate."""
    if not profile["enabled"]:
        raise ValueError("calibration is off in this profile")
    if profile.get("rel_scope", "mean") != "mean":
        raise ValueError("each head has an α of its own in this profile, which only Fovea's generate service estimates")
    fields: dict[str, Any] = {LAYERS: profile["layers"], TEMPERATURE: profile["temperature"]}
    heads = profile.get("rel_heads") or []
    fields |= (
        {REL_HEADS: [number for head in heads for number in head]} if heads else {REL_LAYERS: profile["rel_layers"]}
    )
    bias = profile["bias"]
    if bias != "cached":
        return {**fields, BIAS: "exact" if bias == "tree" else bias}
    found = [table for table in profile["tables"] if len(table["attention"]) == num_documents]
    if not found:
        counts = ", ".join(map(str, sorted({len(table["attention"]) for table in profile["tables"]})))
        asked = f"not {num_documents}" if num_documents else "say for how many"
        raise ValueError(f"the profile has tables for {counts} documents: {asked}")
    nearest = min(found, key=lambda table: abs(math.log2(table["bucket"] / max(1, num_tokens))))
    return {**fields, BIAS: "table", BIAS_TABLE: nearest["attention"]}


def notes_on(profile: Mapping[str, Any]) -> list[str]:
    """Say what a request adds to the fields, and what they leave out."""
    notes = [f"each request adds {DOCUMENTS}"]
    if profile["bias"] == "tree":
        notes.append("tree is an estimate of Fovea's own engine: exact replaces it")
    if profile["bias"] == "query":
        notes.append(f"and {QUESTION}")
    elif profile.get("dummy", "whole") == "framed" and profile["bias"] != "cached":
        notes.append(f"and {CONTENTS}: dummies replace titles and texts")
    if profile.get("row_scope") == "tail":
        notes.append(f"and {FIRST_ROW}: the first token after the documents")
    return notes


def main(arguments: Sequence[str]) -> None:
    """Print the fields of a file."""
    if not 1 <= len(arguments) <= 3:
        sys.exit(__doc__)
    try:
        profile = json.loads(Path(arguments[0]).read_text())
        if not isinstance(profile, dict) or "enabled" not in profile:
            raise ValueError("this is no profile, which `fovea calibrate` writes as calibration.json")
        fields = fields_of(profile, *map(int, arguments[1:]))
    except (OSError, ValueError) as error:
        sys.exit(f"{arguments[0]}: {error}")
    sys.stdout.write(f"{json.dumps(fields)}\n")
    sys.stderr.write(f"{'; '.join(notes_on(profile))}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
