"""tailsafe: the best policy whose spectral risks stay under your limits."""

from tailsafe._version import __version__
from tailsafe.errors import InputError

__all__ = ["InputError", "__version__"]
