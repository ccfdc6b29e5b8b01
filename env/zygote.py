"""The processes of a long-lived jail: a warden that makes rooms, and zygotes that fork the programs into them.

    nsjail -> warden (process 1 of the jail) -> zygote of the standard library -> zygote with numpy -> ...
                 |                                     |
                 v one for each call                   v one for each call
              init (process 1 of a room)            the program (process 2 of that room)

A *room* is what one call has to itself (`env.warden`). A program is forked by the smallest zygote that has its
libraries, because a fork costs what the forking process has in memory; it enters the room, gives up every right, and
only then reads the user's code.

Standard library only. Runs inside the jail with the capabilities of the jail's own user namespace.

Invariants:
- warden and zygotes have one thread, never compile or read what users wrote, and never read what a program sends;
- a program has left its zygote's user, capabilities, descriptors and namespaces, and has its limits and its seccomp
  filter, before it sees a byte of the user's code; it says so itself (`started`), and the host checks;
- everything ends when the warden does, and the warden ends when its link to the host closes.

Links are SOCK_SEQPACKET sockets, one packet a message, words in ASCII. What may be said (host -> here, here -> host):
- warden: first `up`; `room SCRATCH_BYTES INODES` -> `room` with a pidfd of its init, later `gone CPU_MICROSECONDS`;
- zygote: `run UID ADDRESS_SPACE DATA FILE_SIZE PROCESSES`, the last four limits and 0 for none of DATA or PROCESSES,
  with (pidfd of init, code, stdout, stderr, and stdin if any)
  -> `started ...` from the program itself and `ended WAIT_STATUS MONOTONIC_NS CPU_MICROSECONDS MAXRSS_KIB`,
  or `failed WHY`;
- zygote: `grow LIBRARY` with a socket -> on that socket `up`, and after the host's `go`: `ready`, or `lacks WHY`.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
import _socket  # pyright: ignore[reportMissingImports]
import ctypes
import gc
import marshal
import os
import posix
import resource
import sys
import time

from env import forked_heap, runner
from env.warden import WARDEN_LINK, checked, keep_rooms, libc, microseconds

ZYGOTE_LINK = 4
"""Of the first zygote; those of later ones come with `grow`."""
BIND_NOW = "LD_BIND_NOW"
"""Set for the start only (ld.so(8)): what is looked up late would be looked up by each program anew."""
BUNDLE = 5
"""Readable: marshalled ({name: code of that module of `env`}, settings); this file is the last of the modules."""

ROOM = posix.CLONE_NEWNS | posix.CLONE_NEWIPC
_PR_SET_DUMPABLE, _PR_GET_SECCOMP, _PR_CAPBSET_DROP, _PR_GET_NO_NEW_PRIVS = 4, 21, 24, 39
_SYS_SECCOMP, _SET_MODE_FILTER = 317, 1
_CAPABILITY_VERSION_3 = 0x20080522
_INSTRUCTION = 8
_DESCRIPTORS = 8
PROGRAM_DESCRIPTORS = 256
"""RLIMIT_NOFILE of programs."""
_MESSAGE = 4096

_EPERM = 1
this_process = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
no_capabilities = (ctypes.c_uint32 * 6)()


class Filter(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    def __init__(self, instructions):
        super().__init__(len(instructions) // _INSTRUCTION, instructions)


def main():
    settings = marshal.loads(posix.pread(BUNDLE, 1 << 20, 0))[1]
    posix.close(BUNDLE)
    del os.environ[BIND_NOW]  # users must not find this
    for name in [name for name in sys.modules if name.partition(".")[0] == "env"]:
        del sys.modules[name]  # nor this
    harden()
    if posix.fork() == 0:
        posix.close(WARDEN_LINK)
        zygote = Zygote(settings)
        code = zygote.serve(ZYGOTE_LINK, "")
        return runner.run_program(code)  # in the process of a program
    posix.close(ZYGOTE_LINK)
    keep_rooms()


def harden():
    """Nobody may look into this process or its children, and nothing that is executed can gain rights."""
    try:
        posix.setgroups([])
    except PermissionError:
        pass  # in a user namespace with one group: the host's others count as nobody's
    checked(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))
    number = 0
    while libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) == 0:  # up to the last one that the kernel knows
        number += 1


class Zygote:
    """A fork server with libraries in its memory."""

    def __init__(self, settings):
        """`settings`: `base` (modules of every zygote), `warm_ups` (library -> code), and the policy for system calls:
        `filter` (BPF), which lets descriptors from `lowest_for_setns` on be entered.
        """
        filter_ = Filter(settings["filter"])
        checked(libc.syscall(_SYS_SECCOMP, _SET_MODE_FILTER, 0, ctypes.byref(filter_)))
        self.room, self.back = settings["lowest_for_setns"], settings["lowest_for_setns"] + 1
        self.base = settings["base"]
        self.warm_ups = settings["warm_ups"]

    def serve(self, descriptor, library):
        """Import, then fork programs for as long as the host likes. Returns the user's code, in a program's process."""
        link = _socket.socket(fileno=descriptor)
        posix.dup2(posix.pidfd_open(posix.getpid()), self.back)
        link.send(b"up")
        if not link.recv(_MESSAGE):
            posix._exit(0)
        self.preload(link, library)
        while True:
            request, ancillary, _, _ = link.recvmsg(_MESSAGE, _socket.CMSG_SPACE(4 * _DESCRIPTORS))
            words = request.split()
            if not words:
                posix._exit(0)
            descriptors = memoryview(ancillary[0][2]).cast("i").tolist()
            if words[0] == b"grow":
                if posix.fork() == 0:
                    link.close()
                    return self.serve(descriptors[0], words[1].decode())
            else:
                started = self.fork_program(link, descriptors)
                if started is None:
                    return self.become_program(link, descriptors, *map(int, words[1:]))
            for descriptor in descriptors:
                posix.close(descriptor)

    def preload(self, link, library):
        sys.path.append(runner.LIBRARIES)
        try:
            if library:
                __import__(library)
                exec(self.warm_ups.get(library, ""), {"__name__": "warm_up"})
            else:
                for name in self.base:
                    __import__(name)
                runner.execute(b"None", {})  # what compiling needs is set up by the first time
        except Exception as error:  # whatever a library may raise: the host is told, and does without
            link.send(b"lacks " + f"{type(error).__name__}: {error}".encode("ascii", "replace")[:1000])
            posix._exit(0)
        sys.path.remove(runner.LIBRARIES)
        gc.collect()
        forked_heap.make_immortal(gc.get_objects())
        gc.freeze()  # collections in programs would copy all of it
        forked_heap.fill_holes()
        link.send(b"ready")

    def fork_program(self, link, descriptors):
        """Fork a program into the room and tell how it ended. None in its process, True in the zygote's."""
        posix.dup2(descriptors[0], self.room)
        try:
            posix.setns(self.room, posix.CLONE_NEWPID)
            program = posix.fork()
        except OSError as error:
            posix.setns(self.back, posix.CLONE_NEWPID)
            link.send(b"failed " + str(error).encode("ascii", "replace"))
            return True
        if program == 0:
            return None
        posix.setns(self.back, posix.CLONE_NEWPID)
        _, status, usage = posix.wait4(program, 0)
        now = time.monotonic_ns()
        link.send(b"ended %d %d %d %d" % (status, now, microseconds(usage), usage.ru_maxrss))
        return True

    def become_program(self, link, descriptors, user, address_space, data, file_size, processes):
        """Enter the room, give up all rights, say so. Returns the user's code. Ends the process if anything fails."""
        _, code, out, err, *given = descriptors
        try:
            posix.setns(self.room, ROOM)
            posix.setsid()
            posix.chdir(runner.HOME)
            posix.dup2(given[0] if given else posix.open("/dev/null", posix.O_RDONLY), 0)
            resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
            resource.setrlimit(resource.RLIMIT_NOFILE, (PROGRAM_DESCRIPTORS, PROGRAM_DESCRIPTORS))
            if data:
                runner.limit_data(data)
            if processes:
                resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
            reseed()
            if user:
                posix.setresgid(user, user, user)
                posix.setresuid(user, user, user)
            checked(libc.capset(this_process, no_capabilities))
            link.send(what_is_in_force())
            link.detach()
            text = runner.read_whole(code)
        except BaseException:  # nothing may go on from here with rights that it should not have
            sys.excepthook(*sys.exc_info())
            posix._exit(70)
        posix.dup2(out, 1)
        posix.dup2(err, 2)
        posix.closerange(3, 1 << 16)
        return text


def what_is_in_force():
    """`started` MONOTONIC_NS PID UID SECCOMP_MODE NO_NEW_PRIVS CAPABILITIES MAXRSS_KIB, as the kernel tells it."""
    held = (ctypes.c_uint32 * 6)()
    checked(libc.capget(this_process, held))
    refused = libc.setns(0, 0) == -1 and ctypes.get_errno() == _EPERM  # EINVAL without the filter
    return b"started %d %d %d %d %d %d %d" % (
        time.monotonic_ns(),
        posix.getpid(),
        posix.getuid(),
        libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) if refused else 0,
        libc.prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
        sum(held),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    )


def reseed():
    """Generators that were made before the fork would give every program the same numbers."""
    if "numpy.random" in sys.modules:  # a number is much quicker than letting numpy find one
        sys.modules["numpy.random"].seed(int.from_bytes(posix.urandom(4), "little"))
    if "sympy.core.random" in sys.modules:
        sys.modules["sympy.core.random"].seed()


if __name__ == "__main__":
    main()
