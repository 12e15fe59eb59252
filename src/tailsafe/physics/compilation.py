"""What compiled programs need: settings that act before JAX's first computation, and room in the process."""

from __future__ import annotations

import os
from pathlib import Path

import jax

_POOL_THREADS = 8
# Of the memory maps that Linux grants a process: beyond, compiled programs are dropped before more are made.
_SHARE = 0.5


def prepare_jax(*, mjx: bool = True) -> None:
    """Switch the persistent compilation cache on and, for programs with MJX, give XLA's CPU runtime enough threads.

    On a machine with few cores XLA's thread pool is as small, and MJX's nested loops can block it for good: seen with
    jaxlib 0.10 on two cores from about two hundred environments on, never with a pool of eight. NPROC is the variable
    XLA reads the size from; one that the user has set is left alone. Without MJX the pool stays small, which is faster
    (docs/performance.md); a process that is to use both must begin with MJX, or set NPROC itself.

    Compiled programs are kept in TAILSAFE_CACHE (default: ~/.cache/tailsafe/jax; an empty value switches the cache
    off), unless the user has configured a cache for JAX.
    """
    if mjx and (os.cpu_count() or 1) < _POOL_THREADS:
        os.environ.setdefault("NPROC", str(_POOL_THREADS))
    folder = os.environ.get("TAILSAFE_CACHE", str(Path.home() / ".cache" / "tailsafe" / "jax"))
    if folder and not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", folder)  # type: ignore[no-untyped-call]


def make_room(share: float = _SHARE, proc: Path = Path("/proc")) -> bool:
    """Drop all compiled programs if they take more than `share` of the process's memory maps; returns whether it did.

    Every program that JAX compiles for the CPU stays mapped, that of a learner in 1,750 pieces. Linux grants a process
    65,530 (vm.max_map_count); at the next one LLVM gives up ("Unable to allocate section memory") and the process ends
    without a chance to save. So whoever trains many different learners in one process calls this in between: programs
    that are needed again are compiled again, or come from the persistent cache. Nothing is done on other systems.
    """
    try:
        with (proc / "self" / "maps").open("rb") as lines:
            used = sum(1 for _ in lines)
        granted = int((proc / "sys" / "vm" / "max_map_count").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return False
    if used <= share * granted:
        return False
    jax.clear_caches()  # type: ignore[no-untyped-call]
    return True
