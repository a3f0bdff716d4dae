"""Probes of representations, linear and MLP, and linear concept erasure (LEACE)."""

from __future__ import annotations

import importlib
import math
import warnings
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from trisect.core.errors import require_extra

KINDS = ("linear", "mlp")
_PENALTY = 1e-3  # L2 penalty of a linear probe: its loss includes _PENALTY / 2 × ‖weights‖²
ROUNDS, STEPS = 12, 8  # of L-BFGS for a linear probe: at most ROUNDS rounds of at most STEPS steps
HIDDEN, RATE, _DECAY, BATCH, EPOCHS = 64, 2e-3, 1e-3, 256, 30  # of the MLP probe, by AdamW
_GAIN, PATIENCE = 1e-4, 2  # early stopping: least gain on held-out tokens in nats, and epochs to wait (MLP)
RIDGE = 1e-4  # relative to the mean variance: whitening does not amplify directions far below it


class Examples(NamedTuple):
    """Representations of the same tokens at several sites, and each token's class (never −1)."""

    x: Float[Tensor, "S N I"]
    y: Int[Tensor, " N"]


class ProbeScores(NamedTuple):
    """Scores of probes by site: accuracy, and V-information in bits.

    Bits are H_V(Y) − H_V(Y|R): the cross-entropy of the label's prior less that of the probe. They are at most the
    prior's cross-entropy, and below 0 where the probe is worse than the prior. Source: Xu et al. 2020, definition 2.
    """

    accuracy: Float[Tensor, " S"]
    bits: Float[Tensor, " S"]


def prior(y: Int[Tensor, " N"], classes: int) -> Float[Tensor, " C"]:
    """The classes' shares with one added to each count, so that none is 0."""
    counts = torch.bincount(y, minlength=classes).double() + 1
    return counts / counts.sum()


def majority(train: Int[Tensor, " N"], test: Int[Tensor, " M"], classes: int) -> float:
    """Share of test tokens in the most frequent class of train."""
    return float((test == prior(train, classes).argmax()).double().mean())


def whiten(train: Float[Tensor, "S N I"], *others: Float[Tensor, "S _ I"]) -> list[Float[Tensor, "S _ I"]]:
    """`train` and others with train's mean subtracted and its covariance whitened, site by site.

    By the symmetric root (ZCA), so that whitening commutes with rotation, and the result of a penalised linear probe depends on
    neither rotation nor scale.
    """
    whitened: list[list[Tensor]] = [[] for _ in (train, *others)]
    for site, representation in enumerate(train):
        wide = representation.double()
        mean = wide.mean(0)
        values, vectors = torch.linalg.eigh((wide - mean).T @ (wide - mean) / len(wide))
        values = values.clamp_min(0)
        floor = RIDGE * values.mean()
        scale = (values + floor).rsqrt() if floor > 0 else torch.zeros_like(values)  # constant: mapped to 0
        root = ((vectors * scale) @ vectors.T).to(representation)
        for results, x in zip(whitened, (train, *others), strict=True):
            results.append((x[site] - mean.to(representation)) @ root)
    return [torch.stack(results) for results in whitened]


def probe(
    kind: str, train: Examples, tuning: Examples, test: Examples, classes: int, generator: torch.Generator
) -> ProbeScores:
    """Fit a probe per site on `train`, with early stopping by its loss on `tuning`, and score it on `test`; all are whitened.

    'linear' is multinomial logistic regression with an L2 penalty, by L-BFGS from the prior on; 'mlp' has one hidden
    layer of 64 ReLUs. Sites do not influence each other.
    """
    if kind == "linear":
        logits = torch.stack([_linear(train, tuning, test, i, classes) for i in range(len(train.x))])
    else:
        logits = _mlp(train, tuning, test, classes, generator)
    logged = prior(train.y, classes).log().to(logits)
    entropy = -logged[test.y].double().mean()
    losses = _losses(logits, test.y).double()
    right = (logits.argmax(-1) == test.y).double().mean(-1)
    return ProbeScores(right, (entropy - losses) / math.log(2))


def _losses(logits: Float[Tensor, "S N C"], y: Int[Tensor, " N"]) -> Float[Tensor, " S"]:
    """Mean cross-entropy of each site, in nats."""
    return torch.logsumexp(logits, -1).mean(-1) - logits.gather(-1, y.expand(len(logits), -1)[..., None]).mean((1, 2))


def _linear(train: Examples, tuning: Examples, test: Examples, site: int, classes: int) -> Float[Tensor, "N C"]:
    """One site's logits on the test tokens."""
    x, y = train.x[site], train.y
    weight, bias = x.new_zeros(classes, x.shape[1]), prior(y, classes).log().to(x)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=STEPS, history_size=STEPS, line_search_fn="strong_wolfe")
    token = torch.arange(len(y), device=y.device)

    def closure() -> Tensor:
        # the gradient is computed by hand, which halves the time: that of the mean cross-entropy by logits is softmax - one-hot
        z = torch.addmm(bias[:, None], weight, x.T)
        total = torch.logsumexp(z, 0)
        loss = (total - z[y, token]).mean() + _PENALTY / 2 * weight.square().sum()
        z.sub_(total).exp_()
        z[y, token] -= 1
        weight.grad, bias.grad = torch.mm(z, x).div_(len(y)) + _PENALTY * weight, z.mean(1)
        return loss

    best, weights = math.inf, (weight.clone(), bias.clone())
    for round_index in range(ROUNDS + 1):
        if round_index:
            optimizer.step(closure)
        loss = float(F.cross_entropy(F.linear(tuning.x[site], weight, bias), tuning.y))
        if not loss < best - _GAIN:
            break
        best, weights = loss, (weight.clone(), bias.clone())
    return F.linear(test.x[site], *weights)


def _mlp(
    train: Examples, tuning: Examples, test: Examples, classes: int, generator: torch.Generator
) -> Float[Tensor, "S N C"]:
    """Every site's logits on the test tokens; sites share initial values and the order of tokens."""
    sites, count, width = train.x.shape

    def uniform(into: int, out: int) -> Tensor:
        bound = 1 / math.sqrt(into)
        values = torch.empty(into, out, dtype=torch.float64).uniform_(-bound, bound, generator=generator)
        return values.to(train.x).repeat(sites, 1, 1).requires_grad_()

    start = prior(train.y, classes).log().to(train.x).repeat(sites, 1, 1)
    parameters = [
        uniform(width, HIDDEN),
        train.x.new_zeros(sites, 1, HIDDEN).requires_grad_(),
        uniform(HIDDEN, classes),
    ]
    parameters.append(start.requires_grad_())
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=_DECAY)

    def logits(x: Float[Tensor, "S N I"]) -> Float[Tensor, "S N C"]:
        return torch.relu(x @ parameters[0] + parameters[1]) @ parameters[2] + parameters[3]

    best, best_parameters, waited = (
        torch.full((sites,), math.inf).to(train.x),
        [t.detach().clone() for t in parameters],
        0,
    )
    for _ in range(EPOCHS):
        for indices in torch.randperm(count, generator=generator).split(BATCH):
            optimizer.zero_grad()
            _losses(logits(train.x[:, indices]), train.y[indices]).sum().backward()
            optimizer.step()
        with torch.no_grad():
            losses = _losses(logits(tuning.x), tuning.y)
            better = losses < best - _GAIN
            best = torch.where(better, losses, best)
            best_parameters = [
                torch.where(better[:, None, None], new, old)
                for new, old in zip(parameters, best_parameters, strict=True)
            ]
        waited = 0 if bool(better.any()) else waited + 1
        if waited >= PATIENCE:
            break
    parameters = best_parameters
    with torch.no_grad():
        return logits(test.x)


SVD_TOLERANCE = 1e-8  # singular values of the whitened cross-covariance below this are taken as rounding


class Eraser(NamedTuple):
    """x ↦ x − (x − mean) rightᵀ leftᵀ: an affine map that removes R directions and keeps the mean."""

    left: Float[Tensor, "I R"]
    right: Float[Tensor, "R I"]
    mean: Float[Tensor, " I"]

    @property
    def rank(self) -> int:
        """The number of removed directions."""
        return self.left.shape[1]

    def __call__(self, x: Float[Tensor, "*N I"]) -> Float[Tensor, "*N I"]:
        """Apply the eraser in its precision; the result has x's."""
        return (x - ((x.to(self.mean) - self.mean) @ self.right.T) @ self.left.T).to(x)

    def compose_projection(
        self, weight: Float[Tensor, "I D"], bias: Float[Tensor, " I"]
    ) -> tuple[Float[Tensor, "I D"], Float[Tensor, " I"]]:
        """The projection whose result is the representation without those directions."""
        removed = self.left @ (self.right @ weight.to(self.mean))
        shift = self.left @ (self.right @ (bias.to(self.mean) - self.mean))
        return (weight - removed).to(weight), (bias - shift).to(bias)


class LabelMoments:
    """Means and covariances of representations and labels, accumulated in constant memory, and erasers from them.

    With `shrinkage` the covariance for whitening is shrunk towards a multiple of the identity (the package's optimal linear
    shrinkage). Raises SpecError if the package `concept-erasure` is not installed.
    """

    def __init__(self, width: int, classes: int, device: torch.device | str = "cpu", *, shrinkage: bool = True) -> None:
        require_extra("concept_erasure", "erase", "Erasing a label")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a function that the package compiles on import
            package: Any = importlib.import_module("concept_erasure")
        # without the bound on the result's variance, which would give up the guarantee of erasure
        self._fitter = package.LeaceFitter(
            width,
            classes,
            constrain_cov_trace=False,
            svd_tol=SVD_TOLERANCE,
            device=device,
            dtype=torch.float64,
            shrinkage=shrinkage,
        )
        self.count = 0

    def add(self, x: Float[Tensor, "N I"], y: Int[Tensor, " N"]) -> None:
        """Add representations and their classes."""
        if len(x):
            self.count += len(x)
            self._fitter.update(x.double(), torch.nn.functional.one_hot(y, len(self._fitter.mean_z)).double())

    def leace(self) -> Eraser:
        """The eraser of the label with the least mean squared change of the whitened representation."""
        leace = self._fitter.eraser
        removed = leace.proj_left.norm(dim=0) > 0
        return Eraser(leace.proj_left[:, removed].contiguous(), leace.proj_right[removed].contiguous(), leace.bias)

    def random(self, rank: int, generator: torch.Generator) -> Eraser:
        """An eraser of a uniformly random subspace of that rank, in the same whitened space about the same mean."""
        whitening, root = self._roots()
        normal = torch.randn(len(whitening), rank, generator=generator, dtype=torch.float64)
        basis = torch.linalg.qr(normal).Q.to(whitening)
        return Eraser(root @ basis, basis.T @ whitening, self._fitter.mean_x)

    def linear_share(self) -> float:
        """Share of the labels' variance, summed over classes, explained by a linear map of the representation."""
        whitening, shares = self._roots()[0], self._fitter.mean_z
        return float((whitening @ self._fitter.sigma_xz).square().sum() / (shares * (1 - shares)).sum())

    def _roots(self) -> tuple[Float[Tensor, "I I"], Float[Tensor, "I I"]]:
        """Σ^(-1/2) and Σ^(1/2), as the package whitens."""
        values, vectors = torch.linalg.eigh(self._fitter.sigma_xx)
        seen = values > values[-1] * len(values) * torch.finfo(values.dtype).eps
        values = values.clamp_min(0)
        inverse = torch.where(seen, values.rsqrt(), 0.0)
        root = torch.where(seen, values.sqrt(), 0.0)
        return (vectors * inverse) @ vectors.T, (vectors * root) @ vectors.T
