"""Write the header, the module, the layout test and the document's tables from kvd.rdl. Usage: generate.py [--check]."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from systemrdl.compiler import RDLCompiler
from systemrdl.node import AddrmapNode, FieldNode, RegfileNode, RegNode

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
DESCRIPTION: Final = Path(__file__).with_name("kvd.rdl")
TRANSITIONS: Final = "session.toml"
NOTE: Final = "From driver/spec/kvd.rdl by `make abi`: generated, do not edit."
DOCUMENT: Final = "docs/device.md"
LIFE: Final = "docs/sessions.md"
BEGIN: Final = "<!-- abi: begin -->\n"
END: Final = "<!-- abi: end -->\n"
CODES: Final = {2: "H", 4: "I", 8: "Q"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bits:
    """A part of a word; `reset` is None where nothing says what it holds after a reset."""

    name: str
    low: int
    high: int
    text: str
    reset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A member of a structure, an entry of a table or a register; `count` is 0 for what is no array."""

    name: str
    offset_bytes: int
    size_bytes: int
    count: int
    text: str
    bits: tuple[Bits, ...]
    structure: Structure | None = None
    """What it is made of where it is no number."""

    @property
    def total_bytes(self) -> int:
        """All elements together."""
        return self.size_bytes * max(1, self.count)

    @property
    def code(self) -> str:
        """How `struct` packs it."""
        if self.structure is None:
            return f"{self.count or ''}{CODES[self.size_bytes]}"
        return "".join(word.code for word in self.structure.words) * max(1, self.count)

    @property
    def parts(self) -> tuple[Bits, ...]:
        """The parts of a word that is more than one number."""
        whole = len(self.bits) == 1 and self.bits[0].high - self.bits[0].low + 1 == 8 * self.size_bytes
        return () if whole else self.bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """Words without holes between them."""

    name: str
    size_bytes: int
    text: str
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Registers that repeat together; their offsets count from the begin of each."""

    name: str
    offset_bytes: int
    stride_bytes: int
    count: int
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Registers at offsets, with holes between them."""

    name: str
    text: str
    words: tuple[Word, ...]
    groups: tuple[Group, ...]


@dataclass(slots=True)
class Abi:
    """All that is described."""

    enums: dict[str, list[tuple[str, int, str]]] = field(default_factory=dict)
    structures: list[Structure] = field(default_factory=list)
    entries: list[Word] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    transitions: dict[str, dict[str, str]] = field(default_factory=dict)

    def named_words(self) -> list[tuple[str, Word]]:
        """Every word with a name of its own; the heads of all capabilities are one."""
        words = [(word.name, word) for word in self.entries]
        words += [(f"{s.name}_{w.name}", w) for s in self.structures for w in s.words if "capability_" not in s.name]
        for block in self.blocks:
            words += [(f"{block.name}_{word.name}", word) for word in block.words]
            words += [
                (f"{block.name}_{group.name}_{word.name}", word) for group in block.groups for word in group.words
            ]
        return words


def read(path: Path) -> Abi:
    """Read the description; a hole in a structure or a transition of unknown names raises ValueError."""
    compiler = RDLCompiler()
    compiler.compile_file(str(path))
    abi = Abi()
    for node in compiler.elaborate().top.children():
        if isinstance(node, RegNode):
            abi.entries.append(_word(node, abi))
        elif isinstance(node, RegfileNode):
            abi.structures.append(_structure(node, abi))
        elif isinstance(node, AddrmapNode):
            words = tuple(_word(child, abi) for child in node.children() if isinstance(child, RegNode))
            groups = tuple(_group(child, abi) for child in node.children() if isinstance(child, RegfileNode))
            abi.blocks.append(Block(name=node.inst_name, text=_text(node), words=words, groups=groups))
    abi.transitions = tomllib.loads(path.with_name(TRANSITIONS).read_text(encoding="utf-8"))
    states, events = ({name for name, _, _ in abi.enums[enum]} for enum in ("state", "event"))
    named = {event for row in abi.transitions.values() for event in row}
    reached = {state for row in abi.transitions.values() for state in row.values()}
    if set(abi.transitions) != states or not named <= events or not reached <= states:
        raise ValueError(f"{TRANSITIONS}: states or events that kvd.rdl does not have, or not all of its states")
    return abi


def _text(node: RegNode | RegfileNode | FieldNode | AddrmapNode) -> str:
    return str(node.get_property("desc") or "")


def _structure(node: RegfileNode, abi: Abi) -> Structure:
    words = tuple(
        _word(child, abi) if isinstance(child, RegNode) else _member(child, abi)
        for child in node.children()
        if isinstance(child, RegNode | RegfileNode)
    )
    end = 0
    for word in words:
        if word.offset_bytes != end:
            raise ValueError(f"{node.inst_name}.{word.name}: at {word.offset_bytes}, not {end}")
        end += word.total_bytes
    return Structure(name=node.inst_name, size_bytes=end, text=_text(node), words=words)


def _member(node: RegfileNode, abi: Abi) -> Word:
    """Return a structure within another; it is the one that was described before with the same type."""
    name = str(node.type_name).removesuffix("_words")
    inner = next((structure for structure in abi.structures if structure.name == name), None)
    if inner is None:
        raise ValueError(f"{node.inst_name}: a structure {name} comes too late or not at all")
    return Word(
        name=node.inst_name,
        offset_bytes=node.raw_address_offset,
        size_bytes=inner.size_bytes,
        count=(node.array_dimensions or [0])[0],
        text=inner.text,
        bits=(),
        structure=inner,
    )


def _group(node: RegfileNode, abi: Abi) -> Group:
    return Group(
        name=node.inst_name,
        offset_bytes=node.raw_address_offset,
        stride_bytes=node.array_stride or 0,
        count=(node.array_dimensions or [0])[0],
        words=tuple(_word(child, abi) for child in node.children() if isinstance(child, RegNode)),
    )


def _word(node: RegNode, abi: Abi) -> Word:
    bits = []
    for part in node.fields():
        encode = part.get_property("encode")
        if encode is not None:
            members = [(str(m.name), int(m.value), str(m.rdl_desc or "")) for m in encode]
            abi.enums.setdefault(encode.type_name, members)
        reset = part.get_property("reset")
        bits.append(
            Bits(name=part.inst_name, low=part.low, high=part.high, text=_text(part), reset=_reset(reset)),
        )
    dimensions = node.array_dimensions or []
    return Word(
        name=node.inst_name,
        offset_bytes=node.raw_address_offset,
        size_bytes=node.get_property("regwidth") // 8,
        count=dimensions[0] if dimensions else 0,
        text=_text(node) or (bits[0].text if len(bits) == 1 else ""),
        bits=tuple(bits),
    )


def _reset(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _numbers(abi: Abi) -> list[tuple[str, int]]:
    """Name and value of each number: where a part of a word is, where a register is, what it holds after a reset."""
    out: list[tuple[str, int]] = []
    for name, word in abi.named_words():
        for part in word.parts:
            mask = ((1 << (part.high - part.low + 1)) - 1) << part.low
            out += [(f"{name}_{part.name}_SHIFT", part.low), (f"{name}_{part.name}_MASK", mask)]
    for block in abi.blocks:
        out += [n for word in block.words for n in _register(f"{block.name}_{word.name}", word)]
        for group in block.groups:
            at = f"{block.name}_{group.name}"
            out += [
                (f"{at}_AT", group.offset_bytes),
                (f"{at}_STRIDE", group.stride_bytes),
                (f"{at}_COUNT", group.count),
            ]
            out += [n for word in group.words for n in _register(f"{at}_{word.name}", word)]
    return [(name.upper(), value) for name, value in out]


def _register(name: str, word: Word) -> Iterator[tuple[str, int]]:
    yield f"{name}_AT", word.offset_bytes
    if word.count:
        yield f"{name}_COUNT", word.count
    resets = [part.reset << part.low for part in word.bits if part.reset is not None]
    if resets:
        yield f"{name}_RESET", sum(resets)


def _next_states(abi: Abi) -> list[list[int | None]]:
    """Rows by state, columns by event: the number of the next state, None where the event can't happen."""
    numbers = {name: value for name, value, _ in abi.enums["state"]}
    return [
        [numbers.get(abi.transitions[state].get(event, "")) for event, _, _ in abi.enums["event"]]
        for state, _, _ in abi.enums["state"]
    ]


def header(abi: Abi) -> str:
    """Return csrc/abi/abi.h."""
    out = [f"/* {NOTE} */", "#ifndef KVD_ABI_ABI_H", "#define KVD_ABI_ABI_H", ""]
    out += ["#include <assert.h>", "#include <stddef.h>", "#include <stdint.h>", "", "/* cffi: begin */"]
    for name, members in abi.enums.items():
        out += [f"enum kvd_abi_{name} {{"]
        out += [f"\tKVD_ABI_{name}_{m}".upper() + f" = {value}, /* {text} */" for m, value, text in members]
        out += [f"\tKVD_ABI_{name}_COUNT".upper() + f" = {max(value for _, value, _ in members) + 1},", "};", ""]
    for structure in abi.structures:
        out += [f"/* {structure.text} */", f"struct kvd_abi_{structure.name} {{"]
        for word in structure.words:
            array = f"[{word.count}]" if word.count else ""
            kind = f"struct kvd_abi_{word.structure.name}" if word.structure else f"uint{word.size_bytes * 8}_t"
            out.append(f"\t{kind} {word.name}{array}; /* {word.text} */")
        out += ["};", ""]
    out += ["/* cffi: end */", ""]
    for structure in abi.structures:
        size = f"sizeof(struct kvd_abi_{structure.name}) == {structure.size_bytes}"
        out += [f'static_assert({size}, "the size that is described");']
    out += [""]
    out += [f"#define KVD_ABI_{name} {value:#x}{'ull' if value >> 32 else 'u'}" for name, value in _numbers(abi)]
    rows = _next_states(abi)
    out += ["", "/* The next state by state and event; KVD_ABI_STATE_COUNT: the event can't happen there. */"]
    out += [f"static const uint8_t kvd_abi_next_state[{len(rows)}][{len(rows[0])}] = {{"]
    refused = len(rows)
    out += ["\t{" + ", ".join(str(refused if to is None else to) for to in row) + "}," for row in rows]
    return "\n".join([*out, "};", "", "#endif", ""])


def module(abi: Abi) -> str:
    """Return driver/kvdriver/abi.py, formatted."""
    out = [f'"""{NOTE}"""', "", "import struct", "from enum import IntEnum", "from typing import Final", ""]
    for name, members in abi.enums.items():
        out += [f"class {name.title().replace('_', '')}(IntEnum):", f'    """Values of `{name}`."""', ""]
        out += [f"    {m.upper()} = {value}" for m, value, _ in members] + ["", ""]
    out += [f"{name}: Final = {value:#x}" for name, value in _numbers(abi)]
    for structure in abi.structures:
        code = "".join(word.code for word in structure.words)
        name = structure.name.upper()
        out += [f'{name}: Final = struct.Struct("<{code}")', f"{name}_OFFSETS: Final[dict[str, int]] = {{"]
        out += [f'    "{word.name}": {word.offset_bytes},' for word in structure.words] + ["}"]
    out += ["NEXT_STATE: Final[dict[State, dict[Event, State]]] = {"]
    for state, row in abi.transitions.items():
        cells = ", ".join(f"Event.{event.upper()}: State.{to.upper()}" for event, to in row.items())
        out += [f"    State.{state.upper()}: {{{cells}}},"]
    out += ["}", '"""What each event makes of each state; an event that is not named can\'t happen there."""']
    command = [str(Path(sys.executable).with_name("ruff")), "format", "--stdin-filename", "abi.py", "-"]
    done = subprocess.run(command, input="\n".join(out), text=True, cwd=ROOT, capture_output=True, check=True)
    return done.stdout


def layout_test(abi: Abi) -> str:
    """Return tests/c/test_abi.c: what is described is what the compiler lays out and what the engine has."""
    out = [f"/* {NOTE} */", "#include <setjmp.h>", "#include <stdarg.h>", "#include <stddef.h>", "#include <stdint.h>"]
    out += ["", "#include <cmocka.h>", "", '#include "abi/abi.h"', '#include "engine/internal.h"']
    for structure in abi.structures:
        out += ["", f"static void test_{structure.name}(void **state)", "{", "\t(void)state;"]
        kind = f"kvd_abi_{structure.name}"
        out.append(f"\tassert_int_equal(sizeof(struct {kind}), {structure.size_bytes});")
        for word in structure.words:
            out.append(f"\tassert_int_equal(offsetof(struct {kind}, {word.name}), {word.offset_bytes});")
            out.append(f"\tassert_int_equal(sizeof(((struct {kind} *)0)->{word.name}), {word.total_bytes});")
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
    for block in abi.blocks:
        out += ["", f"### Registers of `{block.name}`", "", block.text, ""]
        out += ["| offset | bytes | register | after reset | meaning |", "|---|---|---|---|---|"]
        out += [_register_row(word.name, word.offset_bytes, word) for word in block.words]
        for group in block.groups:
            for word in group.words:
                name = f"{group.name}[0 to {group.count - 1}].{word.name}"
                out += [_register_row(name, group.offset_bytes + word.offset_bytes, word, group.stride_bytes)]
    for name, word in ((name, word) for name, word in abi.named_words() if word.parts):
        out += ["", f"### Bits of `{name}`", "", word.text, "", "| bits | name | meaning |", "|---|---|---|"]
        out += [f"| {b.low} to {b.high} | `{b.name}` | {b.text} |" for b in word.parts]
    events = [name for name, _, _ in abi.enums["event"]]
    out += ["", "### Next state by state and event", "", "An empty cell: the event can't happen in that state.", ""]
    out += ["| |" + "|".join(f" {event} " for event in events) + "|", "|---" * (len(events) + 1) + "|"]
    for state, row in abi.transitions.items():
        out += [f"| **{state}** |" + "|".join(f" {row.get(event, '')} " for event in events) + "|"]
    return "\n".join([*(line.rstrip() for line in out[1:]), ""])


def diagram(abi: Abi) -> str:
    """Return what is between the markers of the document of sessions: the table of transitions as a picture."""
    out = ["```mermaid", "%% The life of a session, by `make abi`.", "stateDiagram-v2", "    [*] --> new"]
    for state, row in abi.transitions.items():
        ways = {to: ", ".join(event for event in row if row[event] == to) for to in row.values()}
        out += [f"    {state} --> {to}: {events}" for to, events in ways.items()] or [f"    {state} --> [*]"]
    return "\n".join([*out, "```", ""])


def _register_row(name: str, offset_bytes: int, word: Word, stride_bytes: int = 0) -> str:
    place = f"{offset_bytes:#x}" + (f" + {stride_bytes:#x} n" if stride_bytes else "")
    reset = next((f"{value:#x}" for key, value in _register("", word) if key == "_RESET"), "")
    return f"| {place} | {word.total_bytes} | `{name}` | {reset} | {word.text} |"


def main(*, check: bool) -> int:
    """Write the files, or say which ones are not what would be written (status 1)."""
    abi = read(DESCRIPTION)
    made = {
        "csrc/abi/abi.h": header(abi),
        "driver/kvdriver/abi.py": module(abi),
        "tests/c/test_abi.c": layout_test(abi),
    }
    for name, text in ((DOCUMENT, tables(abi)), (LIFE, diagram(abi))):
        before, rest = (ROOT / name).read_text(encoding="utf-8").split(BEGIN)
        made[name] = f"{before}{BEGIN}{text}{END}{rest.split(END)[1]}"
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
