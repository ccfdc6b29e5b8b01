"""The process that compares answers: one comparison at a time, under limits of its own.

    python -m actors.verification_worker PARENT_PID LIMIT_SECONDS MEMORY_BYTES < socket

Protocol, on the socket that is its standard input: it says `"ready"`, then for each line `[gold, answer]` it says
the outcome. All lines are JSON in ASCII.

Invariants:
- the time limit is a timer of this process, set when a comparison begins (waiting in a queue costs nothing) and left to
  its default action, which is death: no library can catch it, and no long-running C call can hold it off;
- it dies with its parent, and when the socket is closed.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys

from actors.system.orphans import die_with


def main(parent: int, limit_s: float, memory_bytes: int) -> None:
    """Serve until the socket is closed."""
    die_with(parent)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair
    # Imported only now: it takes a second, in which the process is bound to its parent already.
    from policies.answers.comparison import Outcome, compare_answers

    def compare(gold: str, answer: str) -> Outcome | str:
        try:
            return compare_answers(gold, answer)
        except MemoryError:
            return "timed_out"  # out of memory rather than time: it asked for more than it may have
        except Exception:  # what sympy chokes on can raise anything, and is nothing that can be read
            return "unparsable"

    with socket.socket(fileno=os.dup(0)) as connection, connection.makefile("rw", encoding="ascii") as channel:
        print(json.dumps("ready"), file=channel, flush=True)
        for line in channel:
            gold, answer = json.loads(line)
            signal.setitimer(signal.ITIMER_REAL, limit_s)
            outcome = compare(gold, answer)
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(json.dumps(outcome), file=channel, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
