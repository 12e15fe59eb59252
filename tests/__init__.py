"""The tests. Signatures of the packages below are held to their shapes while they run (`tests/shapes.py`)."""

from jaxtyping import install_import_hook

from tests import shapes

CHECKED = [f"tailsafe.{name}" for name in ("risk", "optimization", "learning", "algorithms")]

install_import_hook(CHECKED, f"{shapes.__name__}.{shapes.checked.__name__}")
