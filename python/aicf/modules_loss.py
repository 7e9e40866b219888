"""Losses as modules: called with what the model gives and the target."""

from __future__ import annotations

from . import class_losses, losses, sequences
from .graph import Value
from .modules_simple import Simple

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CosineSimilarity",
    "CrossEntropyLoss",
    "GaussianNLLLoss",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "MarginRankingLoss",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "NLLLoss",
    "PairwiseDistance",
    "PoissonNLLLoss",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "TripletMarginLoss",
    "TripletMarginWithDistanceLoss",
]

_MEAN = {"reduction": "mean"}


class _Loss(Simple, shown=()):
    """A loss; `reduction` is "mean" over what counts, "sum", or "none"."""


class MSELoss(_Loss, of=losses.mse_loss, options=_MEAN):
    """The mean of (y − t)², as torch.nn.MSELoss.

    >>> aicf.nn.MSELoss()(x, y).shape
    ()
    """


class L1Loss(_Loss, of=losses.l1_loss, options=_MEAN):
    """The mean of |y − t|, as torch.nn.L1Loss.

    >>> aicf.nn.L1Loss()(x, y).shape
    ()
    """


class SmoothL1Loss(_Loss, of=losses.smooth_l1_loss, options={**_MEAN, "beta": 1.0}):
    """|y − t|, a parabola below beta, as torch.nn.SmoothL1Loss.

    >>> aicf.nn.SmoothL1Loss()(x, y).shape
    ()
    """


class HuberLoss(_Loss, of=losses.huber_loss, options={**_MEAN, "delta": 1.0}):
    """A parabola that goes on as a line from delta, as torch.nn.HuberLoss.

    >>> aicf.nn.HuberLoss()(x, y).shape
    ()
    """


class _Labels(_Loss):
    ignore_index: int | None

    def forward(self, x: Value, t: Value) -> Value:
        given = self._given()
        if t.dtype.startswith(("float", "bfloat")):  # probabilities: nothing is ignored
            given["ignore_index"] = None
        y: Value = type(self)._function(x, t, **given)
        return y


class CrossEntropyLoss(
    _Labels,
    of=class_losses.cross_entropy,
    options={"weight": None, "ignore_index": -100, **_MEAN, "label_smoothing": 0.0},
    tensors=("weight",),
):
    """−log softmax(logits) at the labels, or over probabilities of all classes, as
    torch.nn.CrossEntropyLoss; see `aicf.cross_entropy`.

    Args:
        weight: of each class, kept as a buffer.
        ignore_index: a label whose rows do not count; None for none, which is faster.

    >>> aicf.nn.CrossEntropyLoss()(x, labels).shape
    ()
    """


class NLLLoss(
    _Labels,
    of=class_losses.nll_loss,
    options={"weight": None, "ignore_index": -100, **_MEAN},
    tensors=("weight",),
):
    """−x at the labels, of logarithms of probabilities, as torch.nn.NLLLoss; options as of
    `CrossEntropyLoss`.

    >>> aicf.nn.NLLLoss()(x, labels).shape
    ()
    """


class BCELoss(
    _Loss,
    of=losses.binary_cross_entropy,
    options={"weight": None, **_MEAN},
    tensors=("weight",),
):
    """Cross-entropy of probabilities of yes, as torch.nn.BCELoss.

    >>> aicf.nn.BCELoss()(aicf.sigmoid(x), y).shape
    ()
    """


class BCEWithLogitsLoss(
    _Loss,
    of=losses.binary_cross_entropy_with_logits,
    options={"weight": None, **_MEAN, "pos_weight": None},
    tensors=("weight", "pos_weight"),
):
    """`BCELoss` of logits, as torch.nn.BCEWithLogitsLoss.

    >>> aicf.nn.BCEWithLogitsLoss()(x, y).shape
    ()
    """


class KLDivLoss(_Loss, of=losses.kl_div, options={**_MEAN, "log_target": False}):
    """t (log t − x) of logarithms of probabilities x, as torch.nn.KLDivLoss.

    >>> aicf.nn.KLDivLoss(reduction="batchmean")(aicf.log_softmax(x), aicf.softmax(y)).shape
    ()
    """


class PoissonNLLLoss(
    _Loss,
    of=losses.poisson_nll_loss,
    options={"log_input": True, "full": False, "eps": 1e-8, **_MEAN},
):
    """Of counts with a Poisson distribution, as torch.nn.PoissonNLLLoss.

    >>> aicf.nn.PoissonNLLLoss()(x, y).shape
    ()
    """


class GaussianNLLLoss(
    _Loss, of=losses.gaussian_nll_loss, options={"full": False, "eps": 1e-6, **_MEAN}
):
    """Of numbers with a normal distribution of known variance, as torch.nn.GaussianNLLLoss.

    >>> aicf.nn.GaussianNLLLoss()(x, y, aicf.exp(x)).shape
    ()
    """


class HingeEmbeddingLoss(_Loss, of=losses.hinge_embedding_loss, options={"margin": 1.0, **_MEAN}):
    """Distances of pairs that are alike (1) or not (−1), as torch.nn.HingeEmbeddingLoss.

    >>> aicf.nn.HingeEmbeddingLoss()(x, aicf.sign(y)).shape
    ()
    """


class SoftMarginLoss(_Loss, of=losses.soft_margin_loss, options=_MEAN):
    """log(1 + exp(−t y)) of t = 1 or −1, as torch.nn.SoftMarginLoss.

    >>> aicf.nn.SoftMarginLoss()(x, aicf.sign(y)).shape
    ()
    """


class MarginRankingLoss(_Loss, of=losses.margin_ranking_loss, options={"margin": 0.0, **_MEAN}):
    """Of pairs and which is larger, as torch.nn.MarginRankingLoss.

    >>> aicf.nn.MarginRankingLoss()(x, y, aicf.sign(y)).shape
    ()
    """


class CosineEmbeddingLoss(_Loss, of=losses.cosine_embedding_loss, options={"margin": 0.0, **_MEAN}):
    """Of pairs of rows that are alike (1) or not (−1), as torch.nn.CosineEmbeddingLoss.

    >>> aicf.nn.CosineEmbeddingLoss()(x, y, aicf.sign(y[:, 0])).shape
    ()
    """


class TripletMarginLoss(
    _Loss,
    of=losses.triplet_margin_loss,
    options={"margin": 1.0, "p": 2.0, "eps": 1e-6, "swap": False, **_MEAN},
):
    """Of rows, what is like them and what is not, as torch.nn.TripletMarginLoss.

    >>> aicf.nn.TripletMarginLoss()(x, y, y * 2.0).shape
    ()
    """


class TripletMarginWithDistanceLoss(
    _Loss,
    of=losses.triplet_margin_with_distance_loss,
    options={"distance_function": None, "margin": 1.0, "swap": False, **_MEAN},
):
    """`TripletMarginLoss` with a distance of one's own, as
    torch.nn.TripletMarginWithDistanceLoss.

    >>> aicf.nn.TripletMarginWithDistanceLoss()(x, y, y * 2.0).shape
    ()
    """


class MultiMarginLoss(
    _Loss,
    of=class_losses.multi_margin_loss,
    options={"p": 1, "margin": 1.0, "weight": None, **_MEAN},
    tensors=("weight",),
):
    """The margins of the label's class to the others, as torch.nn.MultiMarginLoss.

    >>> aicf.nn.MultiMarginLoss()(x, labels).shape
    ()
    """


class MultiLabelMarginLoss(_Loss, of=class_losses.multilabel_margin_loss, options=_MEAN):
    """The margins of several labels' classes to the others, as torch.nn.MultiLabelMarginLoss.

    >>> aicf.nn.MultiLabelMarginLoss()(x, g.input("several", (4, 3), "int64")).shape
    ()
    """


class MultiLabelSoftMarginLoss(
    _Loss,
    of=losses.multilabel_soft_margin_loss,
    options={"weight": None, **_MEAN},
    tensors=("weight",),
):
    """The mean of `BCEWithLogitsLoss` over classes, as torch.nn.MultiLabelSoftMarginLoss.

    >>> aicf.nn.MultiLabelSoftMarginLoss()(x, y).shape
    ()
    """


class CTCLoss(_Loss, of=sequences.ctc_loss, options={"blank": 0, **_MEAN, "zero_infinity": False}):
    """Of sequences without an alignment, as torch.nn.CTCLoss; see `aicf.ctc_loss`.

    >>> heard = aicf.log_softmax(g.input("heard", (7, 2, 4)))
    >>> aicf.nn.CTCLoss()(heard, g.input("said", (2, 3), "int64"), (7, 7), (3, 3)).shape
    ()
    """


_AXES = {"dim": "axis", "keepdim": "keepdims"}


class CosineSimilarity(
    Simple, of=losses.cosine_similarity, options={"dim": 1, "eps": 1e-8}, called=_AXES, shown=()
):
    """The cosine of the angle between rows, as torch.nn.CosineSimilarity.

    >>> aicf.nn.CosineSimilarity()(x, y).shape
    (4,)
    """


class PairwiseDistance(
    Simple,
    of=losses.pairwise_distance,
    options={"p": 2.0, "eps": 1e-6, "keepdim": False},
    called=_AXES,
    shown=(),
):
    """The distance between rows, as torch.nn.PairwiseDistance.

    >>> aicf.nn.PairwiseDistance()(x, y).shape
    (4,)
    """
