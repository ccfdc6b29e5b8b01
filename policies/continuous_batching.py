"""Continuous batching with chunked prefill, a prefix cache and preemption: vLLM V1's scheduler as a pure state machine.

    core = ContinuousBatching(limits)
    core.add(request)
    while (work := core.begin()) is not None:      # the caller lets the time of `work` pass
        for finished in core.end(steps): ...       # some or all of the steps of `work`

Event-driven: while no request comes, goes or must be preempted, every decoding sequence gains one token a step, so one
token clock serves them all: a sequence that starts to decode at clock C with n tokens to go ends at C + n, whatever
the others do. A stretch of such steps is one piece of work, and costs the same whether it is of 1 step or of 1,000.

Invariants (vLLM V1, first come first served, no speculation, one step in flight):
- running sequences are served in the order of their admission, each decoding one token; at most the last of them is
  still prefilling, with what is left of the step's token budget;
- where blocks are missing, the last admitted sequence is preempted: its blocks are released (their content can still
  be found), it goes to the front of the queue with what it has generated, and nobody is admitted in that step;
- a sequence is admitted when all its tokens fit beside what is held, cached blocks that others hold coming free;
- the last token is always computed anew, however much of the sequence is cached.
"""

from __future__ import annotations

import heapq
from collections import deque

from policies.batching_records import BatchingCounts, BatchingLimits, Sampled, Turn
from policies.decoding_sequences import DecodingSequences
from policies.kv_blocks import NO_HITS, BlockPool, Hits, Holding, path_of
from policies.step_cost import StepWork


class _Sequence:
    """A request in the engine. `base` is its computed tokens minus the clock, while it decodes."""

    __slots__ = ("base", "computed", "generated", "holding", "lost", "order", "path", "tokens", "turn")

    def __init__(self, turn: Turn, block_tokens: int) -> None:
        self.turn = turn
        self.tokens = turn.length
        """Tokens known when it was last admitted."""
        self.path = path_of(turn.prompt, turn.prompt_tokens, turn.sequence, block_tokens)
        self.holding = Holding()
        self.order = -1  # of admission; -1: waiting
        self.generated = 0
        self.computed = 0
        self.base = 0
        self.lost = 0


class ContinuousBatching:
    """See the module's docstring."""

    def __init__(self, limits: BatchingLimits) -> None:
        self.limits, self.counts = limits, BatchingCounts()
        self.peak_blocks = 0
        """Blocks held in the last step that ended, before those that finished with it gave theirs back."""
        self._block, self._caching = limits.block_tokens, limits.prefix_caching
        self._max_running, self._max_step_tokens = limits.max_running, limits.max_step_tokens
        self._pool = BlockPool(limits.kv_blocks, prefix_caching=limits.prefix_caching)
        self._sequences: dict[str, _Sequence] = {}
        self._waiting: deque[_Sequence] = deque()
        self._running: dict[int, _Sequence] = {}  # by order of admission
        self._prefilling: _Sequence | None = None  # the last of the running, if it has tokens to compute
        self._clock = 0
        self._admitted = 0
        self._decoding: DecodingSequences[_Sequence] = DecodingSequences(self._block)
        self._ends: list[tuple[int, int]] = []  # heap of (clock, order); entries of the preempted are stale
        self._looked_up: tuple[_Sequence | None, int, Hits] = None, 0, NO_HITS
        """The last look-up: of whom, after how many changes of the pool, and what was found."""
        self._work: StepWork | None = None
        self._blocks_ahead = 0  # new blocks that all steps of a stretch of decoding need
        self._scheduled = False  # the work is a step whose blocks have been taken already
        self._prefilled: list[_Sequence] = []  # sequences whose prefill this step completes

    # --- what the engine holds -------------------------------------------------------------------

    @property
    def used_blocks(self) -> int:
        return self._pool.total - self._pool.free

    @property
    def running(self) -> tuple[str, ...]:
        """Ids of running requests, in order of admission."""
        return tuple(sequence.turn.id for sequence in self._running.values())

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sequences

    # --- between steps ---------------------------------------------------------------------------

    def add(self, turn: Turn) -> None:
        """Queue a request. Raises `ValueError` for one that could never be held."""
        assert self._work is None, "requests come between steps"
        assert turn.id not in self._sequences, f"request {turn.id} is already in the engine"
        assert turn.new_tokens >= 1 and 1 <= turn.prompt_tokens <= turn.length, f"not a request: {turn}"
        capacity = self._pool.total * self._block
        if turn.length + turn.new_tokens > capacity:
            raise ValueError(
                f"request {turn.id}: {turn.length} + {turn.new_tokens} tokens exceed the engine's {capacity}; "
                "a request over capacity would wait for ever"
            )
        sequence = _Sequence(turn, self._block)
        self._sequences[turn.id] = sequence
        self._waiting.append(sequence)

    def abort(self, request_id: str) -> Sampled | None:
        """Remove a request; None if it is not here."""
        assert self._work is None, "requests go between steps"
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return None
        if sequence.order < 0:
            self._waiting.remove(sequence)
        else:
            self._leave(sequence)
        return Sampled(request_id, sequence.generated)

    def generated(self, request_id: str) -> int:
        """Tokens that a request in the engine has been given so far, between steps."""
        sequence = self._sequences[request_id]
        decodes = self._decoding.holds(sequence.order, sequence.base)
        return sequence.generated + (sequence.base + self._clock - sequence.computed if decodes else 0)

    def begin(self) -> StepWork | None:
        """Decide the next work; None if there is nothing to do."""
        assert self._work is None, "end the last work first"
        if not self._running and not self._waiting:
            return None
        if self._prefilling is None and not self._can_admit():
            steps = self._steps_ahead()
            if steps:
                decoding = self._decoding
                self._work = StepWork(steps, decoding.count, decoding.bases + decoding.count * self._clock)
                return self._work
        self._work = self._schedule()
        return self._work

    def end(self, steps: int) -> list[Sampled]:
        """The first `steps` steps of the work have been done; returns the requests that finished with the last one."""
        work = self._work
        assert work is not None and 1 <= steps <= work.steps
        self._work = None
        pool = self._pool
        if self._scheduled:
            self._scheduled = False
        else:
            pool.take(self._blocks_ahead if steps == work.steps else self._decoding.blocks_in(self._clock, steps))
        self.peak_blocks = pool.total - pool.free
        clock = self._clock = self._clock + steps
        self.counts.generated_tokens += steps * work.decoding
        finished: list[_Sequence] = []
        ends = self._ends
        while ends and ends[0][0] <= clock:
            sequence = self._running.get(heapq.heappop(ends)[1])
            if sequence is not None:
                finished.append(sequence)
        if self._prefilled:
            finished += self._start_decoding()
        return [self._finish(sequence) for sequence in finished]

    # --- a step with admissions, prefill or preemption -------------------------------------------

    def _schedule(self) -> StepWork:
        """One step of vLLM's scheduler: the running first, then the queue."""
        self._scheduled = True
        budget, preempted = self._max_step_tokens - self._decoding.count, False
        crossing = self._decoding.opening_at(self._clock)
        chunk = 0
        if self._prefilling is not None:
            chunk = min(self._prefilling.tokens - self._prefilling.computed, budget)
        if len(crossing) + self._new_blocks(chunk) <= self._pool.free:
            self._pool.take(len(crossing))
        else:
            preempted = self._take_or_preempt(list(crossing.values()), chunk)
            budget = self._max_step_tokens - self._decoding.count
        prefill = pairs = 0
        last = self._prefilling
        if last is not None and chunk:
            prefill, pairs = chunk, self._compute(last, chunk)
        decoding = self._decoding.count
        context = self._decoding.bases + decoding * self._clock
        budget -= prefill
        while not preempted and budget > 0 and self._waiting and len(self._running) < self._max_running:
            hits = self._admissible(self._waiting[0])
            if hits is None:
                break
            sequence = self._admit(hits)
            chunk = min(sequence.tokens - sequence.computed, budget)
            pairs += self._compute(sequence, chunk)
            prefill, budget = prefill + chunk, budget - chunk
        self.counts.prefill_tokens += prefill
        return StepWork(1, decoding, context, prefill, pairs)

    def _take_or_preempt(self, crossing: list[_Sequence], chunk: int) -> bool:
        """Blocks for those that need one, in order of admission; the last admitted are preempted to make room."""
        needs = [(sequence, 1) for sequence in crossing]
        if self._prefilling is not None and chunk:
            needs.append((self._prefilling, self._new_blocks(chunk)))
        preempted = False
        for sequence, blocks in needs:
            if sequence.order < 0:
                break  # preempted, and so is everyone behind it
            while blocks > self._pool.free and sequence.order >= 0:
                self._preempt()
                preempted = True
            if sequence.order >= 0 and sequence is not self._prefilling:
                self._pool.take(blocks)  # a chunk's blocks are taken when it is computed, right after this
        return preempted

    def _preempt(self) -> None:
        victim = self._running[next(reversed(self._running))]
        self._leave(victim)
        victim.lost, victim.computed, victim.order = victim.computed, 0, -1
        self._waiting.appendleft(victim)
        self.counts.preemptions += 1

    def _can_admit(self) -> bool:
        return (
            bool(self._waiting)
            and len(self._running) < self._max_running
            and self._admissible(self._waiting[0]) is not None
        )

    def _admissible(self, sequence: _Sequence) -> Hits | None:
        """The cached blocks that the sequence would begin with, if all its tokens fit."""
        tokens, pool, hits = sequence.tokens, self._pool, NO_HITS
        if self._caching:
            whom, changes, hits = self._looked_up
            if whom is not sequence or changes != pool.changes:
                hits = pool.lookup(sequence.path, (tokens - 1) // self._block)
                self._looked_up = sequence, pool.changes, hits
        blocks, evictable, _ = hits
        return hits if -(-tokens // self._block) - blocks + evictable <= pool.free else None

    def _admit(self, hits: Hits) -> _Sequence:
        sequence = self._waiting.popleft()
        self._pool.attach(sequence.holding, hits)
        sequence.order, sequence.computed = self._admitted, hits[0] * self._block
        self._admitted += 1
        self._running[sequence.order] = sequence
        counts = self.counts
        counts.admissions += 1
        counts.lookup_tokens += sequence.tokens
        counts.hit_tokens += sequence.computed
        counts.recomputed_tokens += max(0, sequence.lost - sequence.computed)
        return sequence

    def _new_blocks(self, chunk: int) -> int:
        """Blocks that the sequence in prefill needs for `chunk` more tokens."""
        last = self._prefilling
        return 0 if last is None else -(-(last.computed + chunk) // self._block) - last.holding.blocks

    def _compute(self, sequence: _Sequence, chunk: int) -> int:
        """Take the blocks of a prefill chunk; returns its attention pairs."""
        before, after = sequence.computed, sequence.computed + chunk
        blocks = -(-after // self._block) - sequence.holding.blocks
        self._pool.take(blocks)
        sequence.holding.open += blocks
        sequence.computed = after
        self._pool.cache(sequence.holding, sequence.path, after // self._block)
        if after == sequence.tokens:
            self._prefilling = None
            self._prefilled.append(sequence)
        else:
            self._prefilling = sequence
        return chunk * before + chunk * (chunk + 1) // 2

    # --- decoding --------------------------------------------------------------------------------

    def _steps_ahead(self) -> int:
        """Steps until a sequence ends or blocks run out; 0 if they have run out."""
        ends = self._ends
        while ends[0][1] not in self._running:
            heapq.heappop(ends)
        steps = ends[0][0] - self._clock
        blocks, free = self._decoding.blocks_in(self._clock, steps), self._pool.free
        if blocks > free:
            steps, blocks = self._decoding.steps_within(self._clock, free)
        self._blocks_ahead = blocks
        return steps

    def _start_decoding(self) -> list[_Sequence]:
        """Sequences whose prefill is complete have sampled a token; returns those for which it was the last."""
        finished: list[_Sequence] = []
        for sequence in self._prefilled:
            sequence.generated += 1
            sequence.tokens += 1
            self.counts.generated_tokens += 1
            left = sequence.turn.new_tokens - sequence.generated
            if not left:
                finished.append(sequence)
                continue
            sequence.base = sequence.computed - self._clock
            self._decoding.enter(sequence.order, sequence.base, sequence)
            heapq.heappush(self._ends, (self._clock + left, sequence.order))
        self._prefilled.clear()
        return finished

    def _finish(self, sequence: _Sequence) -> Sampled:
        self._leave(sequence)
        del self._sequences[sequence.turn.id]
        return Sampled(sequence.turn.id, sequence.generated)

    def _leave(self, sequence: _Sequence) -> None:
        """Out of the running; its blocks are released."""
        del self._running[sequence.order]
        if self._decoding.leave(sequence.order, sequence.base):
            computed = sequence.base + self._clock
            decoded = computed - sequence.computed
            sequence.generated += decoded
            sequence.tokens += decoded
            sequence.computed = computed
            sequence.holding.open += -(-computed // self._block) - sequence.holding.blocks
            self._pool.cache(sequence.holding, sequence.path, computed // self._block)
        elif self._prefilling is sequence:
            self._prefilling = None
        self._pool.release(sequence.holding)
