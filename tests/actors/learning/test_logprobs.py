"""Chunked log-probabilities against the plain formula in float64, and their gradients by finite differences."""

import pytest
import torch

from actors.learning.logprobs import score_tokens


def inputs(n: int = 7, width: int = 5, vocabulary: int = 11):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, width, generator=generator, dtype=torch.float64, requires_grad=True)
    projection = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(vocabulary, generator=generator, dtype=torch.float64, requires_grad=True)
    return hidden, projection, bias, torch.randint(vocabulary, (n,), generator=generator)


@pytest.mark.parametrize("chunk_logits", [1, 22, 30, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_those_of_a_full_softmax(chunk_logits: int, temperature: float) -> None:
    hidden, projection, bias, targets = inputs()
    scores = score_tokens(hidden, projection, bias, targets, temperature, chunk_logits)
    shares = ((hidden @ projection.T + bias) / temperature).log_softmax(-1)
    torch.testing.assert_close(scores.logprobs, shares.gather(-1, targets[:, None])[:, 0])
    torch.testing.assert_close(scores.entropies, -(shares.exp() * shares).sum(-1).detach())


@pytest.mark.parametrize("with_bias", [True, False])
def test_gradients_pass_finite_differences(with_bias: bool) -> None:
    hidden, projection, bias, targets = inputs()

    parts = (hidden, projection, bias) if with_bias else (hidden, projection)

    def scored(*parts: torch.Tensor):
        return score_tokens(parts[0], parts[1], parts[2] if with_bias else None, targets, 0.7, 22)

    assert torch.autograd.gradcheck(lambda *parts: tuple(scored(*parts)), parts)
    assert torch.autograd.gradcheck(lambda *parts: scored(*parts).logprobs, parts)
    assert torch.autograd.gradcheck(lambda *parts: scored(*parts).entropies, parts)


@pytest.mark.parametrize("chunk_logits", [1, 22, 30])
def test_chunked_gradients_are_those_of_one_chunk(chunk_logits: int) -> None:
    found = []
    for chunk in (chunk_logits, 1000):
        hidden, projection, bias, targets = inputs()
        scores = score_tokens(hidden, projection, bias, targets, 0.7, chunk)
        (scores.logprobs.sum() + (scores.entropies**2).sum()).backward()
        found.append((hidden.grad, projection.grad, bias.grad))
    torch.testing.assert_close(found[0], found[1])


def test_no_more_logits_than_a_chunk_exist_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, projection, bias, targets = inputs(n=9)
    seen = []
    linear = torch.nn.functional.linear

    def watched(*arguments: torch.Tensor) -> torch.Tensor:
        seen.append(linear(*arguments))
        return seen[-1]

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    score_tokens(hidden, projection, bias, targets, chunk_logits=24).logprobs.sum().backward()
    assert [logits.shape for logits in seen] == [(2, 11)] * 4 + [(1, 11)] + [(2, 11)] * 4 + [(1, 11)]


def test_no_tokens_are_no_fault() -> None:
    hidden, projection, bias, targets = inputs()
    scores = score_tokens(hidden[:0], projection, bias, targets[:0])
    scores.logprobs.sum().backward()
    assert len(scores.logprobs) == 0 and projection.grad is not None and not projection.grad.any()
