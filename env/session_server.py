"""What runs in a session's process: it takes cells one by one and runs them in one namespace, as a notebook does.

Runs inside the room of a session, after all rights are given up; standard library only.

    (the program that the room was made for) -> keeper -> cells

The keeper waits for the process that runs the cells and reports how it ended. Both talk over a SOCK_SEQPACKET socket:
the kernel tells the host who of them has sent what. Here -> host and host -> here:
- keeper: first `up`; waits for `go` (it is then within its limits); last `ended WAIT_STATUS`;
- cells: first `ready MAXRSS_KIB`; then for each `cell NUMBER TOKEN`, with the code in a descriptor,
  `done TOKEN EXIT_CODE CPU_MICROSECONDS MAXRSS_KIB`.

Invariants:
- a cell can't end its session but by ending its process; what it raises or exits with is told to the host;
- what a cell printed is written out before `done` is said;
- a process that a cell forked ends with the cell's code, at the latest: cells are for the one that they began in;
- who did not read TOKEN can't say `done`: descriptors that a program writes to at random do no harm. (A program that
  searches this process's memory for it lies about its own cell only.)
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
import _signal  # pyright: ignore[reportMissingImports]
import _socket  # pyright: ignore[reportMissingImports]
import builtins
import linecache
import posix
import resource
import sys
import traceback

from env import runner

LINK = 255
"""Where the socket is put: above what programs use, below what they may have."""
CELL_NAME = "cell %d"
"""What tracebacks call the code of a cell."""
_MESSAGE = 256


def serve(detach):
    """Never returns. The socket is this process's standard input; with `detach` this process ends at once."""
    posix.dup2(0, LINK, inheritable=False)
    posix.dup2(posix.open("/dev/null", posix.O_RDONLY), 0)
    posix.closerange(3, LINK)
    link = _socket.socket(fileno=LINK)
    if detach and posix.fork():
        posix._exit(0)
    link.send(b"up")
    if not link.recv(_MESSAGE):
        posix._exit(0)
    worker = posix.fork()
    if worker == 0:
        posix.setsid()
        run_cells(link)
    _, status = posix.waitpid(worker, 0)
    link.send(b"ended %d" % status)
    posix._exit(0)


def run_cells(link):
    """Run what comes, until the host closes the socket or a cell ends this process."""
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    main_module = type(sys)("__main__")
    main_module.__dict__.update(__builtins__=builtins)
    sys.modules["__main__"] = main_module
    own = posix.getpid()
    link.send(b"ready %d" % largest_kib())
    while True:
        words, ancillary, _, _ = link.recvmsg(_MESSAGE, _socket.CMSG_SPACE(4))
        if not words:
            posix._exit(0)
        _, number, token = words.split()
        descriptor = int.from_bytes(ancillary[0][2], sys.byteorder)
        code = runner.read_whole(descriptor)
        posix.close(descriptor)
        before = cpu_microseconds()
        exit_code = run_cell(code, CELL_NAME % int(number), main_module.__dict__)
        if posix.getpid() != own:
            posix._exit(exit_code)  # the cell has forked it: it has no answer to give, and must not take the next cell
        link.send(b"done %s %d %d %d" % (token, exit_code, cpu_microseconds() - before, largest_kib()))


def run_cell(code, name, namespace):
    """Run one cell; returns the exit code that it would have as a program."""
    text = code.decode("utf-8", "replace")
    if max(map(len, text.splitlines()), default=0) <= runner.LONGEST_SHOWN_LINE:
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exit_code = 0
    try:
        runner.execute(code, namespace, name)
    except SystemExit as error:
        exit_code = runner.exit_code_of(error)
    except BaseException as error:  # whatever the user's code raised, it ends the cell, not the session
        exit_code = 1
        show(error)
    return show_figures(exit_code)


def show_figures(exit_code):
    """Show the figures that the cell left open, as a notebook does; one that can't be drawn is the cell's error."""
    figures = sys.modules.get("figure_files")  # there if matplotlib has drawn
    try:
        if figures is not None:
            figures.show_open()
    except BaseException as error:  # drawing runs the user's objects
        exit_code = exit_code or 1
        show(error)
    runner.flush()
    return exit_code


def show(error):
    """Print a traceback of the user's own lines."""
    runner.keep_user_frames(error)
    if len(getattr(error, "text", None) or "") > runner.LONGEST_SHOWN_LINE:
        error.text = None
    try:
        traceback.print_exception(error)
    except BaseException:  # the user's code patched what this needs
        posix.write(2, type(error).__name__.encode("utf-8", "replace") + b"\n")


def cpu_microseconds():
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return int(sum(each.ru_utime + each.ru_stime for each in used) * 1e6)


def largest_kib():
    """The largest resident set that this process had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
