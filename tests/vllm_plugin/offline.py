"""Jobs for vLLM's engine; run by the Python of an environment with vLLM, not by pytest.

A job is a line of JSON on standard input: `model`, a checkpoint's folder; `rounds` of requests, each with `input_ids`,
`max_tokens` and `fields` for the plug-in; `engine`, further settings of the engine; `has_block_hashes`, false to leave
out the plug-in's keys of the prefix cache; `is_stock`, true to run without the plug-in. A line of standard output is
its result: `answers` of each round with `tokens`, `logprobs`, `cached` and, where it was measured, `attention`
(L, H, K), and `num_preemptions`; or the `status` of a job that failed.

Each job has a fork of this process, in which vLLM is imported: that takes as long as most jobs.
"""

import gc
import importlib
import json
import os
import sys
from typing import Any

# What an engine imports when it starts.
OF_AN_ENGINE = (
    "vllm.entrypoints.llm",
    "vllm.model_executor.model_loader",
    "vllm.model_executor.models.llama",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
)


def main() -> None:
    for module in OF_AN_ENGINE:
        importlib.import_module(module)
    gc.freeze()  # what has been imported stays
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM writes as well
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            results.write(json.dumps(_answer(json.loads(line))) + "\n")
            results.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:
            results.write(json.dumps({"status": os.waitstatus_to_exitcode(status)}) + "\n")
            results.flush()


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    os.chdir(job["model"])
    os.environ["VLLM_PLUGINS"] = "none" if job.get("is_stock") else "fovea"
    if not job.get("has_block_hashes", True):
        from fovea_vllm import block_hashes

        block_hashes.install = lambda: None
    from vllm import LLM

    engine = LLM(
        model=job["model"],
        dtype="float32",
        max_model_len=512,
        max_num_seqs=8,
        enforce_eager=True,
        disable_log_stats=False,
        **{"block_size": 32, **job.get("engine", {})},
    )
    answers = [_round(engine, requests) for requests in job["rounds"]]
    counted = [metric.value for metric in engine.get_metrics() if metric.name == "vllm:num_preemptions"]
    return {"answers": answers, "num_preemptions": sum(counted)}


def _round(engine: Any, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from vllm import SamplingParams

    params = [
        SamplingParams(
            temperature=0,
            max_tokens=request["max_tokens"],
            ignore_eos=True,
            logprobs=0,
            extra_args=request.get("fields"),
        )
        for request in requests
    ]
    prompts = [{"prompt_token_ids": request["input_ids"]} for request in requests]
    return [
        {
            "tokens": list(output.outputs[0].token_ids),
            "logprobs": [
                of_token[token].logprob
                for token, of_token in zip(output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True)
            ],
            "cached": output.num_cached_tokens or 0,
            "attention": _attention(engine, request.get("fields") or {}),
        }
        for request, output in zip(requests, engine.generate(prompts, params, use_tqdm=False), strict=True)
    ]


def _attention(engine: Any, fields: dict[str, Any]) -> Any:
    if "fovea_measure" not in fields:
        return None
    [found] = engine.collective_rpc("take_fovea_attention", args=(fields["fovea_measure"],))
    return found


if __name__ == "__main__":
    main()
