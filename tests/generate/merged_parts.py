"""The merge of partial attentions into calibrated rows, as a reference for kernels that read keys in parts."""

import torch
from torch import Tensor


def merge_parts(outputs: Tensor, log_mass: Tensor, log_alpha: Tensor, num_tokens: Tensor) -> Tensor:
    """Merge attention over each document alone into calibrated rows, Eq. 3.5 without any token's weight.

        o = (m_0 / Z) o_0 + (M / Z) Σ_k s_k o_k    with m_k = exp LSE_k, Z = Σ_{k≥0} m_k, M = Σ_{k≥1} m_k
                                                   and s_k = N_k α_k / Σ_j N_j α_j

    c_k is the same for all tokens of document k, and with N_k Attn(k) = m_k / Z its weight c_k m_k / Z is M s_k / Z.
    This is how a kernel that reads keys and values once, in parts that do not mix documents, measures and calibrates.

    `outputs` (…, K + 1, D') are o_k, the attention over document k's tokens alone, and last o_0, over all tokens
    outside documents; `log_mass` (…, K + 1) their LSE, −inf for a part of which the row sees nothing, whose output
    does not count. `log_alpha` and `num_tokens` (…, K) as for `log_rescale`. Returns (…, D').
    If α is 0 for every document that a row sees, Eq. 3.5 has no solution, and the row is merged as without calibration.
    """
    own, is_unseen = log_mass.softmax(dim=-1), log_mass == -torch.inf
    wanted = (log_alpha + num_tokens.to(log_mass.dtype).log()).masked_fill(is_unseen[..., :-1], -torch.inf)
    has_solution = wanted.amax(dim=-1, keepdim=True) > -torch.inf if wanted.shape[-1] else is_unseen[..., :0]
    shares = own[..., :-1].sum(dim=-1, keepdim=True) * wanted.softmax(dim=-1)
    weights = torch.cat((torch.where(has_solution, shares, own[..., :-1]), own[..., -1:]), dim=-1)
    return (weights[..., None] * outputs.masked_fill(is_unseen[..., None], 0.0)).sum(dim=-2)
