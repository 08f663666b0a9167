"""open_clip behind LitServe. Runs under an interpreter that has LitServe:

python -m benchmarks.peers.litserve_server MODEL_DIR PORT MAX_BATCH_SIZE BATCH_TIMEOUT_S NUM_WORKERS
"""

import sys
from pathlib import Path
from typing import Any

import litserve
import torch
from torch import Tensor

from benchmarks.peers.plain_clip import PlainClip, answer_of, files_of


class ClipAPI(litserve.LitAPI):  # type: ignore[misc]
    """An API that decodes in the worker, as LitServe does; a batch is of requests, each with any number of images."""

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__(api_path="/v1/embeddings", **options)
        self._directory = directory

    def setup(self, device: str) -> None:
        self._clip = PlainClip(self._directory)

    def decode_request(self, request: dict[str, Any]) -> Tensor:
        return self._clip.pixels(files_of(request))

    def batch(self, inputs: list[Tensor]) -> list[Tensor]:
        return inputs

    def predict(self, inputs: list[Tensor] | Tensor) -> list[Tensor] | Tensor:
        if isinstance(inputs, Tensor):  # LitServe's loop without batches
            return self._clip.embed(inputs)
        return list(torch.split(self._clip.embed(torch.cat(inputs)), [len(pixels) for pixels in inputs]))

    def unbatch(self, output: list[Tensor]) -> list[Tensor]:
        return output

    def encode_response(self, output: Tensor) -> dict[str, Any]:
        return answer_of(output)


def main() -> None:
    directory, port, max_batch_size, batch_timeout_s, num_workers = sys.argv[1:]
    api = ClipAPI(Path(directory), max_batch_size=int(max_batch_size), batch_timeout=float(batch_timeout_s))
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=int(num_workers), timeout=False)
    server.run(host="127.0.0.1", port=int(port), generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
