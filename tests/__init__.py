"""The tests. Signatures of the packages below are held to their shapes while they run (`tests/shapes.py`)."""

from jaxtyping import install_import_hook

from tests import shapes

PACKAGES = ("risk", "optimization", "tabular", "physics", "tasks", "learning", "algorithms", "envs", "policies")
CHECKED = [f"tailsafe.{name}" for name in (*PACKAGES, "evaluation", "training")]

install_import_hook(CHECKED, f"{shapes.__name__}.{shapes.checked.__name__}")
