"""From the tree to a Bundle. All problems are found before any is raised."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edictum.contracts import grammar
from edictum.contracts.bundle import Bundle, ContractSpec, SuccessSpec
from edictum.contracts.contradiction import contradictions
from edictum.contracts.expressions import All, Expression, Leaf, Meaning, leaves
from edictum.contracts.load import MAX_BYTES, Map, Scalar, Seq, Tree, load, no_collection
from edictum.contracts.messages import check_message
from edictum.contracts.operators import Operator, check_custom_operators
from edictum.contracts.problems import Place, Problem, Problems, listed
from edictum.contracts.reach import Guesses, Names, Reach
from edictum.contracts.regex import PatternBudget
from edictum.contracts.selectors import check_custom_selectors
from edictum.contracts.shapes import WRONG
from edictum.core._records import replace
from edictum.core.call import ToolCall
from edictum.core.contract import Kind
from edictum.core.limits import TOOL_FIELDS

KINDS = {kind.value: kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Dialect:
    """The language as one guard speaks it: with its own operators and selectors."""

    operators: Mapping[str, Operator] = field(default_factory=dict)
    selectors: Mapping[str, Callable[[ToolCall], Any]] = field(default_factory=dict)
    max_bytes: int = MAX_BYTES

    @classmethod
    def of(
        cls,
        operators: Mapping[str, Any] | None,
        selectors: Mapping[str, Any] | None,
        max_bytes: int = MAX_BYTES,
    ) -> Dialect:
        return cls(check_custom_operators(operators), check_custom_selectors(selectors), max_bytes)


PLAIN = Dialect()


def parse(content: bytes | str, name: str = "<string>", dialect: Dialect = PLAIN) -> Bundle:
    """The bundle that a text describes; raises BundleError with everything that is wrong with
    it.
    """
    with no_collection():
        bundle, problems = examine(content, name, dialect)
    problems.raise_if_any()
    assert bundle is not None
    return bundle


def examine(
    content: bytes | str, name: str, dialect: Dialect = PLAIN
) -> tuple[Bundle | None, Problems]:
    """As ``parse``, with the problems returned instead of raised, as far as the text is YAML at
    all.
    """
    tree, problems = load(content, name, max_bytes=dialect.max_bytes)
    values = grammar.DOCUMENT.read(tree, problems)
    if values is WRONG:
        return None, problems
    bundle = _Reader(tree, problems, dialect, name).bundle(values)
    version = hashlib.sha256(
        content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    ).hexdigest()
    return (None if problems.errors else _finished(bundle, version, problems.warnings)), problems


def _finished(bundle: Bundle, version: str, warnings: list[Problem]) -> Bundle:
    return replace(bundle, version=version, warnings=tuple(warnings))


class _Reader:
    """Reads what has the right shape, and looks at what it means."""

    def __init__(self, tree: Map, problems: Problems, dialect: Dialect, source: str) -> None:
        self.tree = tree
        self.problems = problems
        self.dialect = dialect
        self.source = source
        self.reach = Reach()
        self.patterns = PatternBudget(len(problems.source.text))
        self.words = grammar.VOCABULARIES[tree.values["kind"].value]  # type: ignore[union-attr]

    def bundle(self, values: Mapping[str, Any]) -> Bundle:
        defaults = values.get("defaults", {})
        contracts = tuple(self._contracts(values.get(self.words.contracts, ())))
        success = tuple(self._success(values.get("success", ())))
        bundle = Bundle(
            name=values.get("metadata", {}).get("name", ""),
            source=self.source,
            mode=defaults.get("mode"),
            unlisted_tools=defaults.get("unlisted_tools"),
            contracts=contracts,
            success=success,
            tools=values.get("tools", {}),
            session=values.get("session", {}),
            observability=values.get("observability", {}),
            observe_alongside=values.get("observe_alongside", False),
        )
        self._check_listed(bundle)
        return bundle

    def _meaning(self, stage: str) -> Meaning:
        return Meaning(
            self.dialect.operators, self.dialect.selectors, self.problems, stage, self.patterns
        )

    # --- Contracts --------------------------------------------------------------------------------

    def _contracts(self, read: Iterable[tuple[Map, Any]]) -> Iterator[ContractSpec]:
        seen: dict[str, int] = {}
        for tree, values in read:
            if values is WRONG or "id" not in values:
                continue
            name, place = values["id"], tree.values["id"]
            if name in seen:
                self.problems.add(
                    place,
                    f"the id '{name}' is taken (line {seen[name]})",
                    "Give each contract an id of its own.",
                )
            seen.setdefault(name, place.line)
            if (contract := self._contract(tree, values)) is not None:
                yield contract

    def _contract(self, tree: Map, values: Mapping[str, Any]) -> ContractSpec | None:
        kind = KINDS[values["type"]]
        said: Mapping[str, Any] = values if kind is Kind.SANDBOX else values.get("then", {})
        effect = (
            said.get("outside", "deny") if kind is Kind.SANDBOX else said.get(self.words.effect)
        )
        raw = values.get("when")
        when = (
            self._meaning("post" if kind is Kind.POST else "pre").of(raw)
            if raw is not None
            else None
        )
        missing = kind in (Kind.PRE, Kind.POST) and when is None
        self._check_message(tree, kind, said)
        self._check_waiting(tree, kind, said, effect)
        if kind is Kind.SANDBOX:
            self._check_bounds(tree)
        if missing or effect is None or "message" not in said:
            return None
        if when is not None:
            self._check_when(tree, values, when, effect)
        tools = self._tools(values) if kind is not Kind.SESSION else ("*",)
        return ContractSpec(
            id=values["id"],
            kind=kind,
            effect=effect,
            message=said["message"],
            tools=tools,
            mode=values.get("mode"),
            enabled=values.get("enabled", True),
            tags=said.get("tags", ()),
            metadata=said.get("metadata", {}),
            timeout=said.get("timeout", 300),
            timeout_effect=said.get(self.words.timeout_effect, "deny"),
            when=when,
            limits=values.get("limits", {}),
            bounds=_bounds(values) if kind is Kind.SANDBOX else {},
            source=self.source,
            place=tree.values["id"],
        )

    def _tools(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        return values["tools"] if "tools" in values else (values.get("tool", "*"),)

    # --- What can be seen to be wrong -------------------------------------------------------------

    def _check_message(self, tree: Map, kind: Kind, said: Mapping[str, Any]) -> None:
        holder = tree if kind is Kind.SANDBOX else tree.values.get("then")
        place = holder.values.get("message") if isinstance(holder, Map) else None
        if place is not None and "message" in said:
            check_message(
                said["message"], place, self._meaning("post" if kind is Kind.POST else "pre"), kind
            )

    def _check_waiting(
        self, tree: Map, kind: Kind, said: Mapping[str, Any], effect: str | None
    ) -> None:
        holder = tree if kind is Kind.SANDBOX else tree.values.get("then")
        for key in ("timeout", self.words.timeout_effect):
            if effect == "deny" and key in said and isinstance(holder, Map):
                hint = f"Remove it, or use '{self.words.approve}'."
                self.problems.warn(
                    holder.keys[key],
                    f"'{key}' does nothing here: nobody is asked, so nobody is waited for",
                    hint,
                )

    def _check_bounds(self, tree: Map) -> None:
        """Bounds that cannot be used are found here, because here their place is known."""
        for place in _items(tree.values.get("allows"), "commands"):
            if len(place.value.split()) > 1:
                self.problems.warn(
                    place,
                    "a program's name has no spaces, so this allows nothing",
                    "Write the name alone, without arguments.",
                )
        from edictum.contracts.sandbox.domains import (
            DomainBounds,
        )  # the parts of the sandbox are large, and few bundles need them
        from edictum.contracts.sandbox.paths import PathBounds

        directories = [place for key in ("within", "not_within") for place in _items(tree, key)]
        domains = [
            place
            for key in ("allows", "not_allows")
            for place in _items(tree.values.get(key), "domains")
        ]
        self._check_each(
            directories,
            lambda path: PathBounds((path,), (), None),
            "a directory",
            "Write a directory's path.",
        )
        hint = (
            "Write host names or patterns such as '*.example.com', without scheme, port and path."
        )
        self._check_each(domains, lambda domain: DomainBounds((domain,), ()), "a domain", hint)

    def _check_each(
        self, places: Iterable[Scalar], use: Callable[[str], Any], what: str, hint: str
    ) -> None:
        for place in places:
            try:
                use(place.value)
            except ValueError as exc:
                told = str(exc)
                self.problems.add(
                    place, told if " " in told else f"'{place.value}' is not {what}", hint
                )

    def _check_when(
        self, tree: Map, values: Mapping[str, Any], when: Expression, effect: str
    ) -> None:
        for leaf in leaves(when):
            if leaf.selector.root == "session" and effect != "deny":
                hint = (
                    f"Use '{self.words.effect}: {self.words.deny}', or remove the condition on the"
                    " session."
                )
                self.problems.add(
                    leaf.place,
                    f"'{leaf.selector.text}' cannot be combined with asking a person",
                    hint,
                )
        self._check_negatives(when)
        self._check_contradictions(when)
        self._check_tool_name(values, when)

    def _check_negatives(self, when: Expression) -> None:
        found = list(leaves(when))
        checked = {
            leaf.selector.text for leaf in found if leaf.operator.name in ("exists", "empty")
        }
        for leaf in found:
            if leaf.operator.negative and not leaf.if_missing and leaf.selector.text not in checked:
                self.problems.warn(
                    leaf.place,
                    f"'{leaf.operator.name}' does not hold when '{leaf.selector.text}' is missing",
                    f"Add '{leaf.selector.text}: {{exists: false}}' under any, or '{{exists:"
                    " true}' to say that this is meant.",
                )

    def _check_contradictions(self, when: Expression) -> None:
        for first, second in contradictions(when):
            message = f"this contract can never fire: '{first}' and '{second}' cannot both hold"
            self.problems.warn(second.place, message, "Use 'any:', or remove one of them.")

    def _check_tool_name(self, values: Mapping[str, Any], when: Expression) -> None:
        tools = self._tools(values)
        for leaf in when.items if isinstance(when, All) else (when,):
            if (
                isinstance(leaf, Leaf)
                and leaf.selector.root == "tool"
                and leaf.operator.name in ("equals", "in")
            ):
                names = leaf.value if leaf.operator.name == "in" else (leaf.value,)
                if self._met(tools, Names(map(str, names)), leaf.place) is False:
                    message = (
                        f"this contract can never fire: it is for {listed(tools)}, and wants"
                        f" tool.name {leaf.value!r}"
                    )
                    self.problems.warn(leaf.place, message, "Put the name under 'tool:'.")

    def _met(self, tools: Sequence[str], names: Names, place: Place) -> bool | None:
        """Whether a tool can have one of the names. When there are too many to tell, that is said,
        once.
        """
        could = self.reach.left >= 0
        met = self.reach.meet(tools, names)
        if met is None and could:
            message = (
                "there are too many names and globs to compare, so contracts that can never fire"
                " are not all found"
            )
            self.problems.warn(place, message, "Use fewer globs.")
        return met

    def _check_listed(self, bundle: Bundle) -> None:
        """Whether contracts are for tools that the bundle's table lists, where that says something
        about them.
        """
        known, denied = Names(bundle.tools), bundle.unlisted_tools == "deny"
        if not known.all:
            if denied:
                hint = "List the tools that may be called under 'tools:'."
                self.problems.warn(
                    self._defaults_place("unlisted_tools"),
                    "no tool is listed, so every call is denied",
                    hint,
                )
            return
        guesses = Guesses(known)
        for contract in bundle.contracts:
            if (
                denied
                and contract.kind is not Kind.SESSION
                and self._met(contract.tools, known, contract.place) is False
            ):
                self._never_asked(contract, guesses)
            else:
                self._check_spelling(contract, guesses)

    def _never_asked(self, contract: ContractSpec, guesses: Guesses) -> None:
        message = (
            f"the contract '{contract.id}' is never asked: {listed(contract.tools)} is not listed"
            " under 'tools:'"
        )
        guess = next(filter(None, map(guesses.of, contract.tools)), "")
        self.problems.warn(
            contract.place,
            message,
            f"{guess}Unlisted tools are denied; list the tool, or remove the contract.",
        )

    def _check_spelling(self, contract: ContractSpec, guesses: Guesses) -> None:
        for tool in dict.fromkeys((*contract.tools, *_limited(contract))):
            if guess := guesses.of(tool):
                message = (
                    f"the contract '{contract.id}' is for '{tool}', which is not listed under"
                    " 'tools:'"
                )
                self.problems.warn(
                    contract.place, message, f"{guess}If there is such a tool, list it as well."
                )

    def _defaults_place(self, key: str) -> Tree:
        defaults = self.tree.values["defaults"]
        return defaults.keys[key] if isinstance(defaults, Map) else defaults

    # --- Success rules ----------------------------------------------------------------------------

    def _success(self, read: Iterable[tuple[Map, Any]]) -> Iterator[SuccessSpec]:
        seen: dict[str, int] = {}
        for number, (tree, values) in enumerate(read):
            if values is WRONG or "failure_when" not in values:
                continue
            name = values.get("id", f"success[{number}]")
            if name in seen:
                self.problems.add(
                    tree.values["id"],
                    f"the id '{name}' is taken (line {seen[name]})",
                    "Give each rule an id of its own.",
                )
            seen.setdefault(name, tree.line)
            when = self._meaning("success").of(values["failure_when"])
            if when is not None and values.get("enabled", True):
                self._check_negatives(when)
                self._check_contradictions(when)
                yield SuccessSpec(id=name, tools=self._tools(values), failure_when=when)


def _items(holder: Tree | None, key: str) -> list[Scalar]:
    """The texts of a list under a key."""
    found = holder.values.get(key) if isinstance(holder, Map) else None
    items = found.items if isinstance(found, Seq) else []
    return [item for item in items if isinstance(item, Scalar) and isinstance(item.value, str)]


def _limited(contract: ContractSpec) -> Iterator[str]:
    """The tools that the limits of a session contract name."""
    return (tool for name in TOOL_FIELDS for tool in contract.limits.get(name, ()))


def _bounds(values: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    bounds = {name: values.get(name, ()) for name in ("within", "not_within")}
    bounds |= {name: values.get("allows", {}).get(name, ()) for name in ("commands", "domains")}
    return bounds | {"not_domains": values.get("not_allows", {}).get("domains", ())}
