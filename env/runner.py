"""The first process of a jail: a small trusted init that forks the user's program and reports how it ended.

Runs inside the jail, started as `python -S -c <bootstrap>`; standard library only, and nothing that is not
builtin or frozen on the path of a call that succeeds, because start-up time is most of what a call costs.

Invariants:
- the user's program is not process 1: signals that it sends itself act as on any host, and orphans are reaped here;
- only init can write to the status pipe; the program's process has closed every descriptor but 0, 1 and 2
  before it sees a byte of the user's code, and the seccomp filter keeps it from taking one from init;
- init never parses the user's code and never reads what the program writes;
- when init ends, the kernel ends everything else in the jail; init ends when the program has, or when the
  control pipe closes because the host's process died.

Descriptors that the host passes (`env.jail`): 0 the program's input, 1 and 2 the jail's log, then
CODE, STATUS, CONTROL, STDOUT, STDERR, RUNNER as numbered below.
"""

import posix
import sys
import time

import _signal
import _thread

CODE = 3
"""Readable: the user's code, as bytes."""
STATUS = 4
"""Writable: `started <monotonic ns>`, then `ended <wait status> <monotonic ns> <max rss in KiB>`."""
CONTROL = 5
"""Readable: one byte when the program may start; end of file when the jail must end."""
STDOUT = 6
STDERR = 7
RUNNER = 8
"""Readable: this module, marshalled."""

FILENAME = "main.py"
"""What tracebacks call the user's code."""
HOME = "/tmp"
LIBRARIES = "/opt/libraries"
OUR_PATHS = ("/opt/", "<frozen ", "<greenroom ")
"""Where frames that are not the user's come from: interpreter, libraries, and this file."""

_ONLY_AST = 0x400
_FUTURE_FEATURES = 0x1FE0000
_HIGHEST_SIGNAL = 64


def main():
    code = read_whole(CODE)
    if not posix.read(CONTROL, 1):
        posix._exit(1)
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # process 1 ignores what it does not handle
    posix.write(STATUS, b"started %d\n" % time.monotonic_ns())
    program = posix.fork()
    if program == 0:
        become_program()
        return run_program(code)  # back to the interpreter's own way of ending: threads, atexit, flush
    _thread.start_new_thread(end_with_host, ())
    while True:
        process, status, usage = posix.wait4(-1, 0)
        if process == program:
            break
    posix.write(STATUS, b"ended %d %d %d\n" % (status, time.monotonic_ns(), usage.ru_maxrss))
    posix._exit(0)


def end_with_host():
    posix.read(CONTROL, 1)
    posix._exit(1)


def read_whole(descriptor):
    parts = []
    while part := posix.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def become_program():
    """Leave init's session and descriptors behind."""
    posix.setsid()
    posix.dup2(STDOUT, 1)
    posix.dup2(STDERR, 2)
    sys.stdout.flush()
    posix.closerange(3, 1 << 16)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def run_program(code):
    """Run the user's code as `__main__`. Raises `SystemExit` as CPython's main would end."""
    import _sitebuiltins
    import builtins

    builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D (i.e. EOF)")
    builtins.quit = _sitebuiltins.Quitter("quit", "Ctrl-D (i.e. EOF)")
    sys.argv = [FILENAME]
    sys.orig_argv = [sys.executable, FILENAME]
    sys.path.insert(0, HOME)
    sys.path.append(LIBRARIES)
    posix.putenv("PYTHONPATH", LIBRARIES)  # for interpreters that the user's code starts
    main_module = type(sys)("__main__")
    main_module.__dict__.update(__builtins__=builtins, __file__=FILENAME, __loader__=SourceOf(code))
    sys.modules["__main__"] = main_module
    try:
        execute(code, main_module.__dict__)
    except SystemExit:
        raise
    except BaseException as error:  # whatever the user's program raised, it ends the program, not us
        report(error)
        raise SystemExit(1) from None


class SourceOf:
    """What linecache and inspect ask for source lines: the code exists in no file."""

    def __init__(self, code):
        self.code = code

    def get_source(self, name):
        return self.code.decode("utf-8", "replace")


def execute(code, namespace):
    """Run statements; print the value of a last one that is an expression, unless it ends in a semicolon."""
    import _ast

    tree = compile(code, FILENAME, "exec", _ONLY_AST, dont_inherit=True)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, _ast.Expr) or code.rstrip().endswith(b";"):
        exec(compile(tree, FILENAME, "exec", dont_inherit=True), namespace)
        return
    tree.body.pop()
    statements = compile(tree, FILENAME, "exec", dont_inherit=True)
    features = statements.co_flags & _FUTURE_FEATURES
    echo = compile(_ast.Interactive(body=[last]), FILENAME, "single", features, dont_inherit=True)
    exec(statements, namespace)
    exec(echo, namespace)


def report(error):
    """Print a traceback of the user's own lines, or leave it to the user's `sys.excepthook`."""
    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, error.__traceback__)
        return
    try:
        import traceback

        shown = traceback.TracebackException(type(error), error, error.__traceback__, compact=True)
        keep_user_frames(shown, traceback.StackSummary)
        text = "".join(shown.format())
    except (MemoryError, RecursionError, ImportError):
        text = type(error).__name__ + "\n"  # no room left to format it
    try:
        sys.stdout.flush()
    except (AttributeError, OSError, ValueError):
        pass  # the user's program closed or replaced it
    posix.write(2, text.encode("utf-8", "backslashreplace"))


def keep_user_frames(shown, stack_type):
    pending = [shown]
    while pending:
        one = pending.pop()
        frames = [frame for frame in one.stack or () if not frame.filename.startswith(OUR_PATHS)]
        one.stack = stack_type.from_list(frames) if frames else None
        pending += [e for e in (one.__cause__, one.__context__, *(one.exceptions or ())) if e is not None]


if __name__ == "__main__":
    main()
