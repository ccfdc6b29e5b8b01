"""What the learner is given: sequences of tokens with what is to be learned from each token."""

from __future__ import annotations

from pydantic import model_validator

from policies import tokens
from policies.scripted import CountedTokens
from policies.tokens import PackedIds
from policies.trajectory import Record, Trajectory


class TrainingSequence(Record):
    """One sequence of `L` tokens.

    Used for both kinds of learning: in fine-tuning `learned` marks the tokens to imitate and `advantage` is 1;
    in reinforcement learning it marks the tokens that the model sampled.
    """

    ids: PackedIds
    """int32 `[L]`; in a simulator, counted."""
    learned: bytes
    """uint8 `[L]`: 1 where the token takes part in the loss. Position 0 never does: nothing predicts it."""
    logprobs: bytes = b""
    """float32 `[L]`: as the engine sampled each learned token, 0 elsewhere. Empty in fine-tuning."""
    advantage: float = 1.0
    group: int = 0
    """Index of the sequence's group within the step (the `group_tokens` denominator needs it)."""

    @model_validator(mode="after")
    def _parts_fit_together(self) -> TrainingSequence:
        if len(self.learned) != self.length:
            raise ValueError(
                f"`learned` marks {len(self.learned)} tokens of {self.length}; give one byte for each token"
            )
        if self.learned.count(0) + self.learned.count(1) != len(self.learned):
            raise ValueError("`learned` holds bytes other than 0 and 1")
        if self.learned[:1] == b"\x01":
            raise ValueError("the first token cannot be learned, since nothing predicts it; mark it 0")
        if self.logprobs and tokens.count(self.logprobs) != self.length:
            raise ValueError(
                f"{tokens.count(self.logprobs)} log-probabilities for {self.length} tokens; "
                "give one for each token, or none"
            )
        return self

    @property
    def length(self) -> int:
        """`L`."""
        return tokens.count(self.ids)

    @property
    def learned_tokens(self) -> int:
        """How many tokens take part in the loss."""
        return self.learned.count(1)


def sequence_from_trajectory(trajectory: Trajectory, advantage: float, group: int) -> TrainingSequence:
    """A rollout as the learner reads it: model tokens are learned, prompt and tool tokens are not."""
    ids = tokens.joined([span.ids for span in trajectory.spans])
    counted = isinstance(ids, CountedTokens)
    learned, logprobs = [], []
    for span in trajectory.spans:
        length = tokens.count(span.ids)
        sampled = span.kind == "model"
        learned.append((b"\x01" if sampled else b"\x00") * length)
        if not counted:
            logprobs.append(span.logprobs if sampled else bytes(4 * length))
    return TrainingSequence(
        ids=ids,
        learned=b"".join(learned),
        logprobs=b"".join(logprobs),
        advantage=advantage,
        group=group,
    )
