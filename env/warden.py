"""Process 1 of a jail of zygotes: makes the rooms in which calls run.

A *room* is what one call has to itself: PID, mount and IPC namespaces, an init, an empty scratch directory. Init is a
few instructions of machine code that run in the warden's own memory (`clone` with CLONE_VM): an init made by a
fork would cost more than all else that a call needs, for copying and dropping memory that it never uses.

Standard library only. Runs inside the jail with the capabilities of the jail's own user namespace.

Invariants:
- the warden has one thread, and never reads what users wrote or what a program sends;
- no two rooms share a namespace, a scratch directory or an init. Rooms of which one is gone before the next is made
  have the same mount namespace one after the other: no program can mount, so that it holds nothing but what is
  always there and the scratch directory, which is each time a new one. (To make and drop one for each call would
  cost 2 ms of waiting for the kernel.)
- `gone` is said when nothing of a room is left: no process, and no scratch directory;
- inits and the rooms with them end when the warden does, and the warden ends when its link to the host closes.

What is said over the link: see `env.zygote`. Sources: clone(2), wait4(2), sigtimedwait(2), pid_namespaces(7).
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
import _signal  # pyright: ignore[reportMissingImports]
import _socket  # pyright: ignore[reportMissingImports]
import ctypes
import posix
import select
import sys

from env import runner

WARDEN_LINK = 3

INIT = bytes.fromhex(
    "b83d000000"  # reap: mov eax, 61         wait4(
    "48c7c7ffffffff"  #  mov rdi, -1          any child,
    "31f6"  #            xor esi, esi         no status,
    "ba01000000"  #      mov edx, 1           WNOHANG,
    "4531d2"  #          xor r10d, r10d       no usage)
    "0f05"  #            syscall
    "85c0"  #            test eax, eax
    "7fe4"  #            jg reap              there may be another one
    "b880000000"  #      mov eax, 128         rt_sigtimedwait(
    "488d3d10000000"  #  lea rdi, [rip + 16]  SIGCHLD, which is blocked (as all are),
    "31f6"  #            xor esi, esi         no information,
    "31d2"  #            xor edx, edx         for ever,
    "41ba08000000"  #    mov r10d, 8          8 bytes of signal set)
    "0f05"  #            syscall
    "ebca"  #            jmp reap
    "cccc"  #            (padding)
    "0000010000000000"  # the set: SIGCHLD is number 17
)
"""What an init runs, on x86-64: reap orphans until somebody kills it, and the kernel with it everything in the room.

Touches no memory and no stack: all inits, and the warden, have the same.
"""

_MESSAGE = 4096
_PAGE = 4096
_PROT_READ, _PROT_WRITE, _PROT_EXEC = 1, 2, 4
_MAP_PRIVATE_ANONYMOUS = 0x22
_MS_NOSUID, _MS_NODEV = 2, 4
_MNT_DETACH = 2
_SHARED = 0x100 | 0x400  # CLONE_VM | CLONE_FILES
_ROOM = posix.CLONE_NEWPID | posix.CLONE_NEWIPC

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p


def checked(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, posix.strerror(number))
    return result


def microseconds(usage):
    return int((usage.ru_utime + usage.ru_stime) * 1e6)


def keep_rooms():
    """Make rooms, and say when one is gone. Ends the process when its link closes."""
    link = _socket.socket(fileno=WARDEN_LINK)
    link.send(b"up")
    rooms = Rooms()
    events = select.poll()
    events.register(WARDEN_LINK, select.POLLIN)
    while True:
        for descriptor, _ in events.poll():
            if descriptor == WARDEN_LINK:
                words = link.recv(_MESSAGE).split()
                if not words:
                    posix._exit(0)
                init = rooms.make(*map(int, words[1:]))
                rights = init.to_bytes(4, sys.byteorder)
                link.sendmsg([b"room"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
                events.register(init, select.POLLIN)
            else:
                events.unregister(descriptor)
                link.send(b"gone %d" % rooms.remove(descriptor))


class Rooms:
    """Those that are there, by a pidfd of their init."""

    def __init__(self):
        memory = libc.mmap(None, 2 * _PAGE, _PROT_READ | _PROT_WRITE, _MAP_PRIVATE_ANONYMOUS, -1, 0)
        assert memory != ctypes.c_void_p(-1).value, "two pages can be had"
        ctypes.memmove(memory, INIT, len(INIT))
        checked(libc.mprotect(ctypes.c_void_p(memory), ctypes.c_size_t(_PAGE), _PROT_READ | _PROT_EXEC))
        self._code, self._stack = ctypes.c_void_p(memory), ctypes.c_void_p(memory + 2 * _PAGE)
        # Inits inherit it. They have Python's handlers, too, and a program that is their user could have these run in
        # the warden's memory; what is blocked reaches nobody.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        self._inits = {}
        self._here = -1
        """The room that is in the warden's own mount namespace."""
        posix.unshare(posix.CLONE_NEWNS)

    def make(self, scratch_bytes, inodes):
        """Returns a pidfd of its init."""
        if self._here >= 0:  # it keeps that namespace: go on in a copy, with a scratch directory less
            posix.unshare(posix.CLONE_NEWNS)
            self._unmount()
        options = b"size=%d,nr_inodes=%d,mode=1777" % (scratch_bytes, inodes)
        flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
        checked(libc.mount(b"none", runner.HOME.encode(), b"tmpfs", flags, options))
        pid = checked(libc.clone(self._code, self._stack, _SHARED | _ROOM | _signal.SIGCHLD, None))
        init = self._here = posix.pidfd_open(pid)
        self._inits[init] = pid
        return init

    def remove(self, init):
        """Of one whose init has ended. Returns the microseconds of CPU that it and the orphans of its room took."""
        _, _, usage = posix.wait4(self._inits.pop(init), 0)
        posix.close(init)
        if init == self._here:
            self._here = -1
            self._unmount()
        return microseconds(usage)

    @staticmethod
    def _unmount():
        checked(libc.umount2(runner.HOME.encode(), _MNT_DETACH))
