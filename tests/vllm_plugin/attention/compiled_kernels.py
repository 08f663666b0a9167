"""Compile the kernels for GPUs, none of which has to be there, as `launch` calls them.

    python -m tests.vllm_plugin.attention.compiled_kernels cuda 90 bf16 128 8 32

The arguments are backend, architecture, type of queries, keys and values, width of a head, and numbers of groups of
heads. The interpreter accepts more than the compiler does: names that change their type in a loop, for one.
"""

import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fovea_vllm.attention.kernels import attend_table

POINTERS = {
    "block_table": "*i32",
    "table": "*i32",
    "arrived": "*i32",
    "lse": "*fp32",
    "outputs": "*fp32",
    "measured": "*fp32",
    "scale": "fp32",
}
HEADS = 32


def compile_kernel(kernel: Any, target: GPUTarget, types: dict[str, str], constants: dict[str, object]) -> None:
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    constexprs = {(names.index(name),): value for name, value in constants.items()}
    triton.compile(ASTSource(fn=kernel, signature=signature, constexprs=constexprs), target=target)


def main() -> None:
    backend, architecture, dtype, width, *groups = sys.argv[1:]
    target = GPUTarget(backend, int(architecture), 32) if backend == "cuda" else GPUTarget(backend, architecture, 64)
    tensors = dict.fromkeys(("query", "key_cache", "value_cache", "out"), f"*{dtype}")
    strides = dict.fromkeys(("query_width", "key_width", "value_width", "out_width", "table_block"), 1)
    sizes = {"width": int(width), "WIDTH": triton.next_power_of_2(int(width)), "block_size": 16, "HEADS": 16}
    tiles = {"IS_WIDENED": False, "TILE": 32, "CHUNK": 32}
    for num_groups in groups:
        heads = {"num_heads": HEADS, "num_groups": int(num_groups)}
        compile_kernel(attend_table, target, {**POINTERS, **tensors}, {**heads, **sizes, **strides, **tiles})
    print(f"{len(groups)} kernels")


if __name__ == "__main__":
    main()
