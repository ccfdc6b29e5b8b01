"""One optimiser step, as the director has the learner do it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from actors.messages import Learn, Learned
from actors.system.actor import ActorRef, Port
from policies.batch import TrainingSequence

LEARN_DEADLINE_S = 3600.0
"""After which a learner that does nothing is given up, and one that works is waited for."""


async def learn(
    port: Port,
    learner: ActorRef,
    *,
    step_id: str,
    kind: Literal["fine_tune", "reinforce"],
    batch: Iterable[TrainingSequence],
) -> Learned:
    """Have a learner do a step; the batch is in the object store only meanwhile, whatever becomes of the step.

    Raises what an ask raises.
    """
    blob = await port.blobs.put(tuple(batch))
    try:
        request = Learn(step_id=step_id, kind=kind, blob=blob.key)
        return await port.ask(learner, request, LEARN_DEADLINE_S, unless_at_work=True)
    finally:  # also where the learner has died, or the step was given up since it had
        await port.blobs.drop(blob)
