"""Warp's library without the machine code of other GPUs: `slim_warp.py LIBRARY SLIM CAPABILITY`, as 90 for an H200.

The library holds Warp's own kernels seven times, for as many generations of GPUs. Code for others than the named one is
overwritten with zeros, which compress to nothing; everything stays where it is.
"""

import struct
import sys
from pathlib import Path

_CONTAINER, _MACHINE_CODE = struct.pack("<IHH", 0xBA55ED50, 1, 16), 2


def slim(library: bytearray, capability: int) -> int:
    """Overwrite in place; returns how many bytes."""
    dropped, at = 0, library.find(_CONTAINER)
    while at >= 0:
        header, size = struct.unpack_from("<HQ", library, at + 6)
        entries = list(_entries(library, at + header, at + header + size))
        if (_MACHINE_CODE, capability) in [(kind, arch) for kind, arch, _, _ in entries]:
            for kind, arch, begin, end in entries:
                if (kind, arch) != (_MACHINE_CODE, capability):
                    library[begin:end] = bytes(end - begin)
                    dropped += end - begin
        at = library.find(_CONTAINER, at + header + size if entries else at + 1)
    return dropped


def _entries(library: bytearray, at: int, end: int):
    """Kind (1: PTX, 2: machine code), compute capability, and where the code lies."""
    while at < end:
        kind, _, header, size = struct.unpack_from("<HHIQ", library, at)
        (arch,) = struct.unpack_from("<I", library, at + 28)
        if kind not in (1, 2) or at + header + size > end:
            return
        yield kind, arch, at + header, at + header + size
        at += header + size


if __name__ == "__main__":
    content = bytearray(Path(sys.argv[1]).read_bytes())
    print(f"{slim(content, int(sys.argv[3])) / 2**20:.0f} MiB of code for other GPUs left out", file=sys.stderr)
    Path(sys.argv[2]).write_bytes(content)
