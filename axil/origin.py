"""Makes sure that axil's packages are axil's own. Imports none of them.

They stand under plain names, which other distributions and a user's own files may bear too; whichever comes first on
`sys.path` wins, and would be run in place of ours.
"""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("wire", "radix", "scheduler", "model_runner", "runtime")


def check_origins() -> None:
    """Check that each of axil's packages would be imported from where `axil` itself was.

    Raises:
        ImportError: names the intruder or the missing package, and the cure.
    """
    home = Path(__file__).parent.parent
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None:
            raise ImportError(f"axil's package {name!r} is missing beside {home / 'axil'}: install axil anew")
        origin = _place(spec)
        if Path(origin) != home / name / "__init__.py":
            raise ImportError(
                f"axil needs its own package {name!r} from {home}, but Python finds {origin} under that name. "
                "If that is a file of yours, rename it or start from another directory; if it comes from another "
                "distribution, install axil into an environment of its own (for example with pipx)."
            )


def _place(spec: ModuleSpec) -> str:
    if spec.origin is not None:
        return spec.origin
    return next(iter(spec.submodule_search_locations or ()), "an unknown place")
