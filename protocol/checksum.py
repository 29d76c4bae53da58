"""CRC32C (Castagnoli): the checksum of record batches, by the C function of the package `crc32c`.

Its extension module is imported without the package around it. That imports `importlib.metadata`, to know its
own version, and a command line: 15 ms of a broker's start.
"""

import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Final

_PACKAGE: Final = "crc32c"
_EXTENSION: Final = f"{_PACKAGE}._crc32c"


def _function() -> Callable[..., int]:
    if _EXTENSION not in sys.modules:
        package = find_spec(_PACKAGE)
        spec = package and PathFinder.find_spec(_EXTENSION, package.submodule_search_locations)
        if not spec or not spec.loader:
            # A version whose files are different ones.
            import crc32c as whole_package

            return whole_package.crc32c
        module = module_from_spec(spec)
        # Where the package looks for it, should anything import that later.
        sys.modules[_EXTENSION] = module
        spec.loader.exec_module(module)
    found: Callable[..., int] = sys.modules[_EXTENSION].crc32c
    return found


#: (data, checksum of what comes before it) -> checksum.
crc32c: Final = _function()
