"""What programs with MJX in them need from JAX. Both settings act before JAX's first computation, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import jax

_POOL_THREADS = 8


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
