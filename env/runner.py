"""The first process of a jail: a small trusted init that forks the user's program and reports how it ended.

Runs inside the jail, started as `python -S -c <bootstrap>`; standard library only, and nothing that is not
builtin or frozen on the path of a call that succeeds, because start-up time is most of what a call costs.

Invariants:
- the user's program is not process 1: signals that it sends itself act as on any host, and orphans are reaped here;
- only init can write to the status pipe; the program's process has closed every descriptor but 0, 1 and 2
  before it sees a byte of the user's code, and the seccomp filter keeps it from taking one from init;
- init never parses the user's code and never reads what the program writes;
- when init ends, the kernel ends everything else in the jail; init ends when the program has (a session's does
  not), or when the control pipe closes because the host's process died.

Descriptors that the host passes (`env.jail`): 0 the program's input, 1 and 2 the jail's log, then
CODE, STATUS, CONTROL, STDOUT, STDERR, RUNNER as numbered below. Argument, where no cgroup holds memory: the program's
RLIMIT_DATA in bytes.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
import _signal  # pyright: ignore[reportMissingImports]
import _thread
import posix
import sys
import time

CODE = 3
"""Readable: the user's code, as bytes."""
STATUS = 4
"""Writable: `started <monotonic ns>`, then `ended <wait status> <monotonic ns> <max rss in KiB>`."""
CONTROL = 5
"""Readable: START or STAY when the program may start; end of file when the jail must end."""
START, STAY = b"!", b"s"
"""One byte each: init ends with the program, or only with the jail."""
STDOUT = 6
STDERR = 7
RUNNER = 8
"""Readable: this module, marshalled."""

FILENAME = "main.py"
"""What tracebacks call the user's code."""
LONGEST_SHOWN_LINE = 2000
"""Characters of source above which tracebacks do without source lines: they would fill the output."""
HOME = "/tmp"
LIBRARIES = "/opt/libraries"
OUR_PATHS = ("/opt/", "<frozen ", "<greenroom ")
"""Where frames that are not the user's come from: interpreter, libraries, and this file."""

_ONLY_AST = 0x400
_FUTURE_FEATURES = 0x1FE0000
_HIGHEST_SIGNAL = 64


def main():
    code = read_whole(CODE)
    start = posix.read(CONTROL, 1)
    if not start:
        posix._exit(1)
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # process 1 ignores what it does not handle
    posix.write(STATUS, b"started %d\n" % time.monotonic_ns())
    program = posix.fork()
    if program == 0:
        become_program()
        return run_program(code)
    _thread.start_new_thread(end_with_host, ())
    if start == STAY:
        outlive_all()
    while True:
        process, status, usage = posix.wait4(-1, 0)
        if process == program:
            break
    posix.write(STATUS, b"ended %d %d %d\n" % (status, time.monotonic_ns(), usage.ru_maxrss))
    posix._exit(0)


def outlive_all():
    """Never returns: what is left of a session is not to die with the process that began it, which may be killed."""
    try:
        while True:
            posix.wait4(-1, 0)
    except ChildProcessError:  # nobody is left who could have children
        while True:
            _signal.pause()


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
    if len(sys.argv) > 1:
        limit_data(int(sys.argv[1]))


def limit_data(most):
    """Let no process from here on have more than so many bytes of memory that is writable and its own."""
    import resource  # from a file: calls pay for it only where they need it

    _, given = resource.getrlimit(resource.RLIMIT_DATA)
    if given == resource.RLIM_INFINITY or most < given:  # else it has less already, and may not have more
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def run_program(code):
    """Run the user's code as `__main__`, and end this process as CPython's main would."""
    import _sitebuiltins
    import atexit  # now, because the user's code may leave builtins in a state in which nothing can be imported
    import builtins
    import gc

    builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D (i.e. EOF)")
    builtins.quit = _sitebuiltins.Quitter("quit", "Ctrl-D (i.e. EOF)")
    sys.argv = [FILENAME]
    sys.orig_argv = [sys.executable, FILENAME]
    sys.path.insert(0, HOME)
    sys.path.append(LIBRARIES)
    posix.putenv("PYTHONPATH", LIBRARIES)  # for interpreters that the user's code starts
    gc.freeze()  # what is there now need not be looked at when the program's garbage is collected
    main_module = type(sys)("__main__")
    main_module.__dict__.update(__builtins__=builtins, __file__=FILENAME, __loader__=SourceOf(code))
    sys.modules["__main__"] = main_module
    exit_code = 0
    try:
        execute(code, main_module.__dict__)
    except SystemExit as error:
        exit_code = exit_code_of(error)
    except BaseException as error:  # whatever the user's program raised, it ends the program, not us
        report(error, code)
        exit_code = 1
    try:
        end(main_module, atexit, gc, exit_code)
    except BaseException:  # the user's code patched what this needs: let the interpreter end in its own way
        raise SystemExit(exit_code) from None


def exit_code_of(error):
    """What `SystemExit` asks for, as CPython has it: None is 0, a number is itself, the rest is printed and is 1."""
    value = error.code
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    print(value, file=sys.stderr)
    return 1


class SourceOf:
    """What linecache and inspect ask for source lines: the code exists in no file."""

    def __init__(self, code):
        self.code = code

    def get_source(self, name):
        return self.code.decode("utf-8", "replace")


def execute(code, namespace, filename=FILENAME):
    """Run statements; print the value of a last one that is an expression, unless it ends in a semicolon."""
    import _ast

    tree = compile(code, filename, "exec", _ONLY_AST, dont_inherit=True)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, _ast.Expr) or code.rstrip().endswith(b";"):
        exec(compile(tree, filename, "exec", dont_inherit=True), namespace)
        return
    tree.body.pop()
    statements = compile(tree, filename, "exec", dont_inherit=True)
    features = statements.co_flags & _FUTURE_FEATURES
    echo = compile(_ast.Interactive(body=[last]), filename, "single", features, dont_inherit=True)
    exec(statements, namespace)
    exec(echo, namespace)


def report(error, code):
    """Print a traceback of the user's own lines, or leave it to the user's `sys.excepthook`.

    The interpreter's own printer is used because importing `traceback` costs as much as starting the interpreter. It
    takes source lines from a file, so it is given one now; the program is at its end.
    """
    keep_user_frames(error)
    if len(getattr(error, "text", None) or "") > LONGEST_SHOWN_LINE:
        error.text = None
    if sys.excepthook is sys.__excepthook__:
        show_source_from(code)
    sys.excepthook(type(error), error, error.__traceback__)


def show_source_from(code):
    """Make the interpreter's traceback printer find the user's lines, wherever it is and whatever is called main.py."""
    import io

    if max(map(len, code.splitlines()), default=0) > LONGEST_SHOWN_LINE:
        return
    path = f"{HOME}/.{FILENAME}.{time.monotonic_ns()}"
    try:
        with io.FileIO(path, "x") as file:
            file.write(code)
    except OSError:
        return  # the scratch directory is full: a traceback without source lines
    io.open = lambda *_, **__: io.FileIO(path)


def keep_user_frames(error):
    """Take the frames of interpreter, libraries and this file out of an exception and those that it came from."""
    pending, seen = [error], set()
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        frames, frame = [], one.__traceback__
        while frame is not None:
            if not frame.tb_frame.f_code.co_filename.startswith(OUR_PATHS):
                frames.append(frame)
            frame = frame.tb_next
        for frame, inner in zip(frames, [*frames[1:], None], strict=False):
            frame.tb_next = inner
        one.__traceback__ = frames[0] if frames else None
        pending += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def end(main_module, atexit, gc, exit_code):
    """End as the interpreter would, as far as it shows.

    Taking all of the interpreter down touches all of its memory, which a forked process then has to copy. What shows
    is that threads are waited for, exit functions called, and what the user's code holds dropped (`__del__` runs).
    """
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()
    flush()
    main_module.__dict__.clear()
    gc.collect()
    flush()
    posix._exit(exit_code)


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # the user's code replaced or closed it


if __name__ == "__main__":
    main()
