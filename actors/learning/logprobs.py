"""Log-probabilities of chosen tokens without the logits of a whole row.

Invariant: at most `CHUNK_LOGITS` logits (or one token's) exist at a time, in the forward and in the backward pass,
whatever the row's length and the vocabulary's size. The backward pass computes the logits again; that costs one more
product with the output projection and saves `4 * n * vocabulary` bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK_LOGITS = 1 << 23
"""32 MiB of float32. With half of it, matrix products over a vocabulary of 50,000 take a quarter longer."""


class TokenScores(NamedTuple):
    """Of `n` predictions."""

    logprobs: Tensor
    """float32 `[n]` (float64 for a float64 model), with gradient."""
    entropies: Tensor
    """float32 `[n]` in nats, of the distribution that each token was drawn from; with gradient."""


def score_tokens(
    hidden: Tensor,
    projection: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float = 1.0,
    chunk_logits: int = CHUNK_LOGITS,
) -> TokenScores:
    """`log softmax((hidden @ projection.T + bias) / temperature)` at the targets.

    Args:
        hidden: `[n, d]`, the last hidden state at the position before each target.
        projection: `[vocabulary, d]`.
        bias: `[vocabulary]` or None.
        targets: int64 `[n]`.
        chunk_logits: logits held at a time.
    """
    chunk = max(1, chunk_logits // projection.shape[0])
    logprobs, entropies = _TokenScores.apply(hidden, projection, bias, targets, temperature, chunk)  # pyright: ignore[reportGeneralTypeIssues]
    return TokenScores(logprobs, entropies)


def _logits(hidden: Tensor, projection: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """`[n, vocabulary]`, in at least float32: a softmax in bf16 loses the tail."""
    logits = torch.nn.functional.linear(hidden, projection, bias)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits if temperature == 1.0 else logits / temperature


def _to_logprob(log_shares: Tensor, targets: Tensor, gradient: Tensor) -> Tensor:
    """`(onehot - softmax) * gradient`, `[n, vocabulary]`, since `d logprob / d logits = onehot - softmax`.

    In the place of `log_shares`: memory for so many logits is new to the process each time, and its pages cost more
    than what is computed in them.
    """
    to_logits = log_shares.exp_().mul_(-gradient[:, None])
    return to_logits.scatter_add_(-1, targets[:, None], gradient[:, None].to(to_logits.dtype))


def _dot(left: Tensor, right: Tensor) -> Tensor:
    """The scalar product of each row with its counterpart, `[n]`, without a product of their size."""
    return torch.bmm(left[:, None], right[:, :, None])[:, 0, 0]


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        projection: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logprobs, entropies, normalisers = (
            torch.empty(len(targets), dtype=dtype, device=hidden.device) for _ in range(3)
        )
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            log_shares = _logits(hidden[part], projection, bias, temperature)
            normalisers[part] = log_shares.logsumexp(-1)
            log_shares -= normalisers[part, None]
            logprobs[part] = log_shares.gather(-1, targets[part, None])[:, 0]
            entropies[part] = -_dot(log_shares.exp(), log_shares)
        ctx.save_for_backward(hidden, projection, bias, targets, normalisers, entropies)
        ctx.temperature, ctx.chunk = temperature, chunk
        ctx.set_materialize_grads(False)  # most objectives have no entropy term: no work for its gradient then
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden, projection, bias, targets, normalisers, entropies = ctx.saved_tensors
        of_logprobs, of_entropies = (None if each is None else each / ctx.temperature for each in gradients)
        if of_logprobs is None:
            of_logprobs = torch.zeros_like(normalisers)
        to_hidden = torch.empty_like(hidden)
        to_projection = torch.zeros_like(projection, dtype=normalisers.dtype)  # added to in place: it is a large one
        to_bias = None if bias is None else torch.zeros_like(bias, dtype=normalisers.dtype)
        for start in range(0, len(targets), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            log_shares = _logits(hidden[part], projection, bias, ctx.temperature)
            log_shares -= normalisers[part, None]
            if of_entropies is None:
                to_logits = _to_logprob(log_shares, targets[part], of_logprobs[part])
            else:
                # d entropy / d logits = -softmax * (log softmax + entropy).
                to_logits = log_shares.exp().mul_(log_shares + entropies[part, None]).mul_(-of_entropies[part, None])
                to_logits += _to_logprob(log_shares, targets[part], of_logprobs[part])
            to_hidden[part] = to_logits.to(projection.dtype) @ projection
            to_projection.addmm_(to_logits.t(), hidden[part].to(to_logits.dtype))
            if to_bias is not None:
                to_bias += to_logits.sum(0)
        return (
            to_hidden,
            to_projection.to(projection.dtype),
            None if bias is None or to_bias is None else to_bias.to(bias.dtype),
            None,
            None,
            None,
        )
