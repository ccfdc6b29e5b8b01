"""What the learner is given: which tokens of a rollout are learned, and what a sequence must be."""

import pytest
from pydantic import ValidationError

from policies import tokens
from policies.batch import TrainingSequence, sequence_from_trajectory
from policies.trajectory import Span, WeightsVersion
from tests.policies.test_trajectory import trajectory

V = WeightsVersion(0, 0)


def span(kind: str, ids: list[int], logprobs: list[float] | None = None) -> Span:
    if logprobs is None:
        return Span.model_validate({"kind": kind, "ids": tokens.pack_ids(ids)})
    return Span.model_validate(
        {"kind": kind, "ids": tokens.pack_ids(ids), "logprobs": tokens.pack_floats(logprobs), "version": V}
    )


def test_only_model_tokens_are_learned() -> None:
    rollout = trajectory(
        span("prompt", [1, 2, 3]),
        span("model", [4, 5], [-0.5, -0.25]),
        span("tool", [6, 7, 8]),
        span("model", [9], [-2.0]),
    )
    sequence = sequence_from_trajectory(rollout, advantage=-0.5, group=3)
    assert tokens.unpack_ids(sequence.ids) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert list(sequence.learned) == [0, 0, 0, 1, 1, 0, 0, 0, 1]
    assert tokens.unpack_floats(sequence.logprobs).tolist() == [0, 0, 0, -0.5, -0.25, 0, 0, 0, -2.0]
    assert (sequence.length, sequence.learned_tokens) == (9, 3)
    assert (sequence.advantage, sequence.group) == (-0.5, 3)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"learned": b"\x00\x01"}, "one byte for each token"),
        ({"learned": b"\x00\x01\x02"}, "other than 0 and 1"),
        ({"learned": b"\x01\x01\x01"}, "first token cannot be learned"),
        ({"logprobs": tokens.pack_floats([0.0])}, "one for each token"),
    ],
)
def test_a_sequence_whose_parts_do_not_fit_is_refused(fields, complaint: str) -> None:
    whole = {"ids": tokens.pack_ids([1, 2, 3]), "learned": b"\x00\x01\x01"}
    TrainingSequence.model_validate(whole)
    with pytest.raises(ValidationError, match=complaint):
        TrainingSequence.model_validate(whole | fields)
