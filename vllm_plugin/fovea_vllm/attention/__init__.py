"""Found-in-the-middle calibration over paged keys and values, as a merge of partial attentions.

    from fovea_vllm.attention.attend import attend_documents
    from fovea_vllm.attention.rows import DocumentRows

    rows = DocumentRows.of(block_table, seq_lens, spans)  # once per step
    out, attention = attend_documents(query, key_cache, value_cache, rows, log_alpha, scale=scale, window=window)

`rows` serves all layers of a step. A row is only measured where `log_alpha` is −inf for all of its documents, and all
rows are if `log_alpha` is None: `out` is then plain attention, and `attention` is Attn(k) per head in either case,
without calibration.

`rows` says which tokens a row sees; `attend` has the equations and computes in torch on any device. `kernels` computes
in Triton, in units of work that `pieces` cuts and of which `table` tells it. The package depends on torch and numpy
alone, and on triton where it computes on a GPU.
"""
