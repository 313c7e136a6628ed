"""Write the C source of one cffi extension from the header that declares its interface.

Usage: cffi_gen.py PACKAGE/MODULE INCLUDE OUTPUT HEADER...

The declarations are the text between the lines ``/* cffi: begin */`` and
``/* cffi: end */`` of the headers, so that no declaration is written twice.
INCLUDE is the one that the source includes.
"""

import sys
from pathlib import Path

from cffi import FFI

BEGIN = "/* cffi: begin */"
END = "/* cffi: end */"


def declarations(header: Path) -> str:
    """Return the marked parts of a header.

    Raises
    ------
    ValueError
        If the header has no marked part.
    """
    parts = [part.split(END, 1)[0] for part in header.read_text().split(BEGIN)[1:]]
    if not parts:
        raise ValueError(f"{header}: no part between {BEGIN!r} and {END!r}")
    return "\n".join(parts)


def main(module: str, include: str, output: str, *headers: str) -> None:
    """Generate OUTPUT."""
    ffi = FFI()
    for header in headers:
        ffi.cdef(declarations(Path(header)))
    ffi.set_source(module.replace("/", "."), f'#include "{include}"\n')
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
