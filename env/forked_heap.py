"""Fewer pages to copy for the children of a process that is forked often: each page that a child writes to is copied.

What is copied costs what it costs: asking the kernel for all of those pages at once (MADV_POPULATE_WRITE) is no quicker
than to fault on each of them.

Standard library only. Runs inside the jail.

Sources: PEP 683; Objects/obmalloc.c of CPython 3.12 on pools and size classes; malloc(3).
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false
import ctypes
import gc
import sys

_IMMORTAL = 0xFF
"""Of each of the four bytes of an immortal object's reference count (CPython 3.12, PEP 683)."""
_CODE = type((lambda: 0).__code__)

_POOL_BITS = 14
"""CPython takes small blocks of one size from pools of 16 KiB."""
_STEP, _LARGEST_SMALL = 16, 512
_SMALLEST_CHUNK, _LARGEST_CHUNK, _BELOW_MMAP = 24, 64 << 10, 120 << 10
"""Bytes. From 128 KiB on the C library maps what it is asked for."""
_MOST_HOLES = 20_000
"""Of one size. So that an allocator that is not as described here costs some memory, not all of it."""

python, libc = ctypes.PyDLL(None), ctypes.CDLL(None)
python.PyObject_Malloc.restype = libc.malloc.restype = ctypes.c_void_p
python.PyObject_Malloc.argtypes = libc.malloc.argtypes = (ctypes.c_size_t,)
python.PyObject_Free.argtypes = libc.free.argtypes = (ctypes.c_void_p,)
python.PyObject_Free.restype = libc.free.restype = None


def make_immortal(objects):
    """Make objects, and what they refer to, immortal (PEP 683): counting references would copy their pages.

    In a program that solves a quadratic with sympy this halves the pages that are copied.
    """
    while objects:
        fresh = [one for one in objects if sys.getrefcount(one) < 1 << 31]
        objects = gc.get_referents(*fresh)
        for one in fresh:
            if type(one) is _CODE:  # the collector does not look into these
                objects += (one.co_consts, one.co_names, one.co_name, one.co_qualname, one.co_filename)
            ctypes.memset(id(one), _IMMORTAL, 4)


def fill_holes():
    """Take what is free between what is in use, for good: new objects then lie together in pages of their own.

    In a program that solves a quadratic with sympy a fifth fewer pages are copied, in one that imports numpy a quarter.
    """
    _fill_pools()
    _fill_chunks()


def _fill_pools():
    """For each size class of CPython's: take blocks until most of a pool came in a row, then give that pool back."""
    row = (ctypes.c_void_p * ((1 << _POOL_BITS) // _STEP))()
    for size in range(_STEP, _LARGEST_SMALL + 1, _STEP):
        enough = (1 << _POOL_BITS) // size * 3 // 4
        pool = length = 0
        for _ in range(_MOST_HOLES):
            block = python.PyObject_Malloc(size)
            length = length + 1 if block >> _POOL_BITS == pool else 1
            pool = block >> _POOL_BITS
            row[length - 1] = block
            if length == enough:
                break
        for number in range(length):
            python.PyObject_Free(row[number])


def _fill_chunks():
    """For the C library's larger ones: take chunks, large ones first, until they come from the top of its heap."""
    top = libc.malloc(_BELOW_MMAP)
    size = _LARGEST_CHUNK
    while size >= _SMALLEST_CHUNK:
        chunk = libc.malloc(size)
        for _ in range(_MOST_HOLES):
            if chunk > top:
                break
            chunk = libc.malloc(size)
        libc.free(chunk)
        size -= max(_STEP, size // 8)
    libc.free(top)
