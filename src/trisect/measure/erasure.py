"""Linear concept erasure (LEACE): a label removed from a representation, with random subspaces as its control.

Axes: N token, I width of a representation, R rank, D width of what a projection reads. Source: Belrose et al. 2023,
"LEACE: Perfect linear concept erasure in closed form", by the authors' own package.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.extras import need_extra

NOTHING = (
    1e-8  # singular values of the whitened cross-covariance below this are rounding: labels have deviations of 0 to 1
)


class Eraser(NamedTuple):
    """x ↦ x − (x − mean) rightᵀ leftᵀ: an affine map that takes out R directions and keeps the mean."""

    left: Float[Tensor, "I R"]
    right: Float[Tensor, "R I"]
    mean: Float[Tensor, " I"]

    @property
    def rank(self) -> int:
        """How many directions are removed."""
        return self.left.shape[1]

    def __call__(self, x: Float[Tensor, "*N I"]) -> Float[Tensor, "*N I"]:
        """The representations without those directions, computed in the eraser's precision and given back in x's."""
        return (x - ((x.to(self.mean) - self.mean) @ self.right.T) @ self.left.T).to(x)

    def through(
        self, weight: Float[Tensor, "I D"], bias: Float[Tensor, " I"]
    ) -> tuple[Float[Tensor, "I D"], Float[Tensor, " I"]]:
        """The projection that makes, of what it reads, the representation without those directions."""
        taken = self.left @ (self.right @ weight.to(self.mean))
        shift = self.left @ (self.right @ (bias.to(self.mean) - self.mean))
        return (weight - taken).to(weight), (bias - shift).to(bias)


class LabelMoments:
    """Means and covariances of representations and labels, in memory that does not grow; the erasers that they make.

    `shrinkage` shrinks the covariance by which representations are whitened towards a multiple of the identity, by as much as
    few examples ask for (the package's optimal linear shrinkage).
    Raises SpecError where the package `concept-erasure` is missing.
    """

    def __init__(self, width: int, classes: int, device: torch.device | str = "cpu", *, shrinkage: bool = True) -> None:
        need_extra("concept_erasure", "erase", "Erasing a label")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it compiles a function, which it does not use here
            package: Any = importlib.import_module("concept_erasure")
        # what bounds the variance of the result gives up the guarantee, so it is left out
        self._fitter = package.LeaceFitter(
            width,
            classes,
            constrain_cov_trace=False,
            svd_tol=NOTHING,
            device=device,
            dtype=torch.float64,
            shrinkage=shrinkage,
        )
        self.count = 0

    def add(self, x: Float[Tensor, "N I"], y: Int[Tensor, " N"]) -> None:
        """Count in representations and their classes."""
        if len(x):
            self.count += len(x)
            self._fitter.update(x.double(), torch.nn.functional.one_hot(y, len(self._fitter.mean_z)).double())

    def leace(self) -> Eraser:
        """What takes the label out with the least change in the mean square of the whitened representation."""
        found = self._fitter.eraser
        kept = found.proj_left.norm(dim=0) > 0
        return Eraser(found.proj_left[:, kept].contiguous(), found.proj_right[kept].contiguous(), found.bias)

    def random(self, rank: int, draw: torch.Generator) -> Eraser:
        """What takes out a random subspace of that rank, drawn evenly in the same whitened space about the same mean."""
        white, colour = self._roots()
        there = torch.randn(len(white), rank, generator=draw, dtype=torch.float64)
        basis = torch.linalg.qr(there).Q.to(white)
        return Eraser(colour @ basis, basis.T @ white, self._fitter.mean_x)

    def explained(self) -> float:
        """Share of the labels' variance, classes summed, that a linear map of the representation explains: 0 to 1."""
        white, shares = self._roots()[0], self._fitter.mean_z
        return float((white @ self._fitter.sigma_xz).square().sum() / (shares * (1 - shares)).sum())

    def _roots(self) -> tuple[Float[Tensor, "I I"], Float[Tensor, "I I"]]:
        """Σ^(-1/2) and Σ^(1/2), as the package whitens."""
        values, vectors = torch.linalg.eigh(self._fitter.sigma_xx)
        seen = values > values[-1] * len(values) * torch.finfo(values.dtype).eps
        values = values.clamp_min(0)
        inverse = torch.where(seen, values.rsqrt(), 0.0)
        root = torch.where(seen, values.sqrt(), 0.0)
        return (vectors * inverse) @ vectors.T, (vectors * root) @ vectors.T
