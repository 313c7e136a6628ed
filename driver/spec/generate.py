"""Write the header, the module, the layout test and the document's tables from kvd.rdl. Usage: generate.py [--check]."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from systemrdl.compiler import RDLCompiler
from systemrdl.node import FieldNode, RegfileNode, RegNode

ROOT: Final = Path(__file__).parents[2]
DESCRIPTION: Final = Path(__file__).with_name("kvd.rdl")
NOTE: Final = "From driver/spec/kvd.rdl by `make abi`: generated, do not edit."
DOCUMENT: Final = "docs/device.md"
BEGIN: Final = "<!-- abi: begin -->\n"
END: Final = "<!-- abi: end -->\n"
CODES: Final = {2: "H", 4: "I", 8: "Q"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """A part of a word."""

    name: str
    low: int
    high: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A member of a structure, or an entry of a table; `count` is 0 for what is no array."""

    name: str
    offset_bytes: int
    size_bytes: int
    count: int
    text: str
    bits: tuple[Bits, ...]

    @property
    def total_bytes(self) -> int:
        """All elements together."""
        return self.size_bytes * max(1, self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """Words without holes between them."""

    name: str
    size_bytes: int
    text: str
    words: tuple[Word, ...]


@dataclass(slots=True)
class Abi:
    """All that is described."""

    enums: dict[str, list[tuple[str, int, str]]] = field(default_factory=dict)
    structures: list[Structure] = field(default_factory=list)
    entries: list[Word] = field(default_factory=list)


def read(path: Path) -> Abi:
    """Read the description; a hole in a structure raises ValueError."""
    compiler = RDLCompiler()
    compiler.compile_file(str(path))
    abi = Abi()
    for node in compiler.elaborate().top.children():
        if isinstance(node, RegNode):
            abi.entries.append(_word(node, abi))
        elif isinstance(node, RegfileNode):
            words = tuple(_word(child, abi) for child in node.children() if isinstance(child, RegNode))
            end = 0
            for word in words:
                if word.offset_bytes != end:
                    raise ValueError(f"{node.inst_name}.{word.name}: at {word.offset_bytes}, not {end}")
                end += word.total_bytes
            abi.structures.append(Structure(name=node.inst_name, size_bytes=end, text=_text(node), words=words))
    return abi


def _text(node: RegNode | RegfileNode | FieldNode) -> str:
    return str(node.get_property("desc") or "")


def _word(node: RegNode, abi: Abi) -> Word:
    bits = []
    for part in node.fields():
        encode = part.get_property("encode")
        if encode is not None:
            members = [(str(m.name), int(m.value), str(m.rdl_desc or "")) for m in encode]
            abi.enums.setdefault(encode.type_name, members)
        if part.width != part.parent.get_property("regwidth"):
            bits.append(Bits(name=part.inst_name, low=part.low, high=part.high, text=_text(part)))
    dimensions = node.array_dimensions or []
    return Word(
        name=node.inst_name,
        offset_bytes=node.raw_address_offset,
        size_bytes=node.get_property("regwidth") // 8,
        count=dimensions[0] if dimensions else 0,
        text=_text(node),
        bits=tuple(bits),
    )


def _masks(abi: Abi) -> list[tuple[str, int, int]]:
    """Name, shift and mask (in place) of each part of a word."""
    words = [(word.name, word) for word in abi.entries]
    words += [(f"{s.name}_{word.name}", word) for s in abi.structures for word in s.words]
    return [
        (f"{name}_{part.name}".upper(), part.low, ((1 << (part.high - part.low + 1)) - 1) << part.low)
        for name, word in words
        for part in word.bits
    ]


def header(abi: Abi) -> str:
    """Return csrc/abi/abi.h."""
    out = [f"/* {NOTE} */", "#ifndef KVD_ABI_ABI_H", "#define KVD_ABI_ABI_H", ""]
    out += ["#include <assert.h>", "#include <stddef.h>", "#include <stdint.h>", ""]
    for name, members in abi.enums.items():
        out += [f"enum kvd_abi_{name} {{"]
        out += [f"\tKVD_ABI_{name}_{m}".upper() + f" = {value}, /* {text} */" for m, value, text in members]
        out += ["};", ""]
    for name, shift, mask in _masks(abi):
        out += [f"#define KVD_ABI_{name}_SHIFT {shift}u", f"#define KVD_ABI_{name}_MASK {mask:#x}ull"]
    for structure in abi.structures:
        out += ["", f"/* {structure.text} */", f"struct kvd_abi_{structure.name} {{"]
        for word in structure.words:
            array = f"[{word.count}]" if word.count else ""
            out.append(f"\tuint{word.size_bytes * 8}_t {word.name}{array}; /* {word.text} */")
        size = f"sizeof(struct kvd_abi_{structure.name}) == {structure.size_bytes}"
        out += ["};", f'static_assert({size}, "the size that is described");']
    return "\n".join([*out, "", "#endif", ""])


def module(abi: Abi) -> str:
    """Return driver/kvdriver/abi.py, formatted."""
    out = [f'"""{NOTE}"""', "", "import struct", "from enum import IntEnum", "from typing import Final", ""]
    for name, members in abi.enums.items():
        out += [f"class {name.title()}(IntEnum):", f'    """Values of `{name}`."""', ""]
        out += [f"    {m.upper()} = {value}" for m, value, _ in members] + ["", ""]
    for name, shift, mask in _masks(abi):
        out += [f"{name}_SHIFT: Final = {shift}", f"{name}_MASK: Final = {mask:#x}"]
    for structure in abi.structures:
        code = "".join(f"{word.count or ''}{CODES[word.size_bytes]}" for word in structure.words)
        name = structure.name.upper()
        out += [f'{name}: Final = struct.Struct("<{code}")', f"{name}_OFFSETS: Final[dict[str, int]] = {{"]
        out += [f'    "{word.name}": {word.offset_bytes},' for word in structure.words] + ["}"]
    command = [str(Path(sys.executable).with_name("ruff")), "format", "--stdin-filename", "abi.py", "-"]
    done = subprocess.run(command, input="\n".join(out), text=True, cwd=ROOT, capture_output=True, check=True)
    return done.stdout


def layout_test(abi: Abi) -> str:
    """Return tests/c/test_abi.c: what is described is what the compiler lays out and what the engine has."""
    out = [f"/* {NOTE} */", "#include <setjmp.h>", "#include <stdarg.h>", "#include <stddef.h>", "#include <stdint.h>"]
    out += ["", "#include <cmocka.h>", "", '#include "abi/abi.h"', '#include "engine/internal.h"']
    for structure in abi.structures:
        out += ["", f"static void test_{structure.name}(void **state)", "{", "\t(void)state;"]
        for kind in (f"kvd_abi_{structure.name}", f"kvd_engine_{structure.name}"):
            out.append(f"\tassert_int_equal(sizeof(struct {kind}), {structure.size_bytes});")
            for word in structure.words:
                out.append(f"\tassert_int_equal(offsetof(struct {kind}, {word.name}), {word.offset_bytes});")
                size = f"sizeof(((struct {kind} *)0)->{word.name})"
                out.append(f"\tassert_int_equal({size}, {word.total_bytes});")
        out.append("}")
    out += ["", "static void test_pte(void **state)", "{", "\t(void)state;"]
    out += ["\tassert_true(kvd_pte_make(0, 1, 0) == KVD_ABI_PTE_VALID_MASK);"]
    for name, arguments in (("TIER", "7, 1, 0"), ("BLOCKS", "0, 512, 0"), ("FRAME", "0, 1, KVD_FRAMES_MAX - 1")):
        mask = f"(KVD_ABI_PTE_VALID_MASK | KVD_ABI_PTE_{name}_MASK)"
        out.append(f"\tassert_true(kvd_pte_make({arguments}) == {mask});")
    out += ["}", "", "int main(void)", "{", "\tconst struct CMUnitTest tests[] = {"]
    out += [f"\t\tcmocka_unit_test(test_{name})," for name in [*(s.name for s in abi.structures), "pte"]]
    return "\n".join([*out, "\t};", "\treturn cmocka_run_group_tests(tests, NULL, NULL);", "}", ""])


def tables(abi: Abi) -> str:
    """Return what is between the markers of the document."""
    out: list[str] = []
    for name, members in abi.enums.items():
        out += ["", f"### Values of `{name}`", "", "| value | name | meaning |", "|---|---|---|"]
        out += [f"| {value} | {m.upper()} | {text} |" for m, value, text in members]
    for structure in abi.structures:
        out += ["", f"### `{structure.name}`: {structure.size_bytes} bytes", "", structure.text, ""]
        out += ["| offset | bytes | member | meaning |", "|---|---|---|---|"]
        out += [f"| {w.offset_bytes} | {w.total_bytes} | `{w.name}` | {w.text} |" for w in structure.words]
    parts = [(f"{s.name}.{w.name}", w) for s in abi.structures for w in s.words if w.bits]
    for name, word in [*parts, *((word.name, word) for word in abi.entries)]:
        out += ["", f"### Bits of `{name}`", "", word.text, "", "| bits | name | meaning |", "|---|---|---|"]
        out += [f"| {b.low} to {b.high} | `{b.name}` | {b.text} |" for b in word.bits]
    return "\n".join([*out[1:], ""])


def main(*, check: bool) -> int:
    """Write the files, or say which ones are not what would be written (status 1)."""
    abi = read(DESCRIPTION)
    before, rest = (ROOT / DOCUMENT).read_text(encoding="utf-8").split(BEGIN)
    made = {
        "csrc/abi/abi.h": header(abi),
        "driver/kvdriver/abi.py": module(abi),
        "tests/c/test_abi.c": layout_test(abi),
        DOCUMENT: f"{before}{BEGIN}{tables(abi)}{END}{rest.split(END)[1]}",
    }
    status = 0
    for name, text in made.items():
        path = ROOT / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            sys.stdout.write(f"{name}: not what driver/spec/kvd.rdl says; run `make abi`\n")
            status = 1
        else:
            path.write_text(text, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
