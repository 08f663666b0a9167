"""Compile the kernels for GPUs, none of which has to be there, as `attend_rows` calls them.

    python -m tests.vllm_plugin.attention.compiled_kernels cuda 90 bf16 128

The arguments are backend, architecture, type of queries, keys and values, and width of a head. The interpreter accepts
more than the compiler does: names that change their type in a loop, for one.
"""

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fovea_vllm.attention.kernels import attend_pieces, merge_pieces

POINTERS = {
    "block_table": "*i32",
    "piece_row": "*i32",
    "piece_start": "*i32",
    "piece_end": "*i32",
    "piece_part": "*i32",
    "first_piece": "*i32",
    "num_tokens": "*i64",
    "lse": "*fp32",
    "outputs": "*fp32",
    "log_alpha": "*fp32",
    "out": "*fp32",
    "attention": "*fp32",
    "scale": "fp32",
}
HEADS = 32


def compile_kernel(kernel: Any, target: GPUTarget, types: dict[str, str], constants: dict[str, object]) -> None:
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    constexprs = {(names.index(name),): value for name, value in constants.items()}
    triton.compile(ASTSource(fn=kernel, signature=signature, constexprs=constexprs), target=target)


def main() -> None:
    backend, architecture, dtype, width = sys.argv[1:]
    target = GPUTarget(backend, int(architecture), 32) if backend == "cuda" else GPUTarget(backend, architecture, 64)
    sizes = {"num_heads": HEADS, "width": int(width), "WIDTH": triton.next_power_of_2(int(width))}
    caches = dict.fromkeys(("query", "key_cache", "value_cache"), f"*{dtype}")
    strides = dict.fromkeys(("query_width", "key_width", "value_width", "table_block"), 1)
    tiles = {"heads_per_group": 4, "block_size": 16, "IS_WIDENED": False, "HEADS": 16, "TILE": 32}
    compile_kernel(attend_pieces, target, {**POINTERS, **caches}, {**sizes, **strides, **tiles})
    for is_calibrated in (True, False):
        merged = {"num_documents": 20, "PARTS": 32, "AT_ONCE": 16, "IS_CALIBRATED": is_calibrated}
        compile_kernel(merge_pieces, target, POINTERS, {**sizes, **merged})
    print("3 kernels")


if __name__ == "__main__":
    main()
