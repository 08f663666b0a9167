"""Muon, the optimizer of the starters' matrices."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Muon:
    """Momentum with orthogonalised steps (Jordan et al. 2024), for matrices inside the network."""

    def __init__(self, matrices: Sequence[Tensor], momentum: float = 0.95) -> None:
        self.matrices = list(matrices)
        self.momentum = momentum
        self.buffers = [torch.zeros_like(matrix) for matrix in self.matrices]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update the matrices, and consume their gradients."""
        for matrix, buffer in zip(self.matrices, self.buffers, strict=True):
            gradient = matrix.grad
            if gradient is None:
                continue
            buffer.mul_(self.momentum).add_(gradient)
            update = orthogonalised(gradient + self.momentum * buffer)
            matrix.add_(update, alpha=-learning_rate * math.sqrt(max(1.0, matrix.shape[0] / matrix.shape[1])))
            matrix.grad = None


def orthogonalised(matrix: Tensor, num_steps: int = 5) -> Tensor:
    """The approximate orthogonal factor of a matrix: singular values near 1, by a quintic Newton-Schulz iteration."""
    x = matrix.bfloat16() / (matrix.norm() + 1e-7)
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    for _ in range(num_steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    factor: Tensor = x.T if is_tall else x
    return factor.to(matrix.dtype)
