"""Parse a tree into a Bundle. All problems are found before any is raised."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edictum.contracts import _grammar as grammar
from edictum.contracts._amounts import parse_amount
from edictum.contracts._bundle import STYLES, AmountSpec, Bundle, ContractSpec, SuccessSpec
from edictum.contracts._computed import find_placeholders
from edictum.contracts._contradiction import contradictions
from edictum.contracts._detect import OwnSecret, join_kinds
from edictum.contracts._expressions import ALWAYS, All, Expression, Leaf, Meaning, leaves
from edictum.contracts._language import Language
from edictum.contracts._load import load_bundle, pause_collection, to_bytes
from edictum.contracts._messages import check_message
from edictum.contracts._problems import BundleProblem, Place, Problems, join_words
from edictum.contracts._reach import Guesses, Names, Reach
from edictum.contracts._regex import Pattern, PatternBudget
from edictum.contracts._scopes import parse_scope
from edictum.contracts._selectors import SelectorError, find_timezone
from edictum.contracts._shapes import WRONG
from edictum.contracts._tree import Map, Scalar, Seq, Tree
from edictum.contracts._vocabulary import VOCABULARIES
from edictum.core.approvers import Approvers
from edictum.core.contract import Kind
from edictum.core.limits import SESSION_SCOPE, TOOL_FIELDS
from edictum.core.tool_entry import AMOUNT_KEYS
from edictum.errors import EdictumConfigError
from edictum.redaction import SECRETS


def parse(content: bytes | str, name: str, language: Language) -> Bundle:
    """Return the bundle of a text; raise BundleError with all its problems."""
    with pause_collection():
        bundle, problems = examine(content, name, language)
    problems.raise_if_any()
    assert bundle is not None
    return bundle


def examine(
    content: bytes | str, name: str, language: Language | None = None
) -> tuple[Bundle | None, Problems]:
    """Parse, but return the problems instead of raising them, if the text is YAML at all."""
    language = language or Language()
    tree, problems = load_bundle(content, name, max_bytes=language.max_bytes)
    values = grammar.DOCUMENT.read(tree, problems)
    if values is WRONG:
        return None, problems
    bundle = _Reader(tree, problems, language, name).read(values)
    if problems.errors:
        return None, problems
    version = hashlib.sha256(to_bytes(content)).hexdigest()
    return replace(bundle, version=version, warnings=tuple(problems.warnings)), problems


class _Reader:
    """Reads parts that have the right shape, and checks their meaning."""

    def __init__(self, tree: Map, problems: Problems, language: Language, source: str) -> None:
        self.tree = tree
        self.problems = problems
        self.language = language
        self.source = source
        self.reach = Reach()
        self.patterns = PatternBudget(len(problems.source.text))
        self.own_secrets: tuple[OwnSecret, ...] = ()
        kind = tree.values["kind"]
        assert isinstance(kind, Scalar)
        self.words = VOCABULARIES[kind.value]
        self.timezone = "UTC"

    def read(self, values: Mapping[str, Any]) -> Bundle:
        defaults = values.get("defaults", {})
        self._read_timezone(defaults)
        self.own_secrets = tuple(self._read_secrets(values.get("secrets", ())))
        bundle = Bundle(
            name=values.get("metadata", {}).get("name", ""),
            source=self.source,
            mode=defaults.get("mode"),
            unlisted_tools=defaults.get("unlisted_tools"),
            missing_args=defaults.get("missing_args"),
            contracts=tuple(self._read_contracts(values.get(self.words.contracts, ()))),
            success=tuple(self._read_success(values.get("success", ()))),
            tools=self._read_tools(values.get("tools", {})),
            secrets=self.own_secrets,
            session=values.get("session", {}),
            approvals=values.get("approvals", {}),
            observability=values.get("observability", {}),
            observe_alongside=values.get("observe_alongside", False),
        )
        self._check_tool_table(bundle)
        return bundle

    def _read_timezone(self, defaults: Mapping[str, Any]) -> None:
        name = defaults.get("timezone", "UTC")
        try:
            find_timezone(name)
        except ValueError as exc:
            tree = self.tree.values["defaults"]
            place = tree.values["timezone"] if isinstance(tree, Map) else tree
            hint = "Use a name such as Europe/Berlin. Where none is known, install 'tzdata'."
            self.problems.add(place, str(exc), hint)
            return
        self.timezone = name

    def _meaning(self, stage: str) -> Meaning:
        operators, selectors = self.language.operators, self.language.selectors
        return Meaning(
            operators,
            selectors,
            self.problems,
            stage,
            self.patterns,
            self.timezone,
            self.own_secrets,
        )

    # --- Secrets ----------------------------------------------------------------------------------

    def _read_secrets(self, read: Iterable[tuple[Map, Any]]) -> Iterator[OwnSecret]:
        seen: dict[str, int] = {}
        for tree, values in read:
            if values is WRONG or not {"kind", "pattern", "samples"} <= values.keys():
                continue
            self._check_unique(values["kind"], tree.values["kind"], seen, "kind of secret")
            place = tree.values["pattern"]
            assert isinstance(place, Scalar)
            pattern = self._meaning("pre").pattern(place)
            if pattern is not None and self._check_samples(tree, pattern):
                yield OwnSecret(values["kind"], pattern)

    def _check_samples(self, tree: Map, pattern: Pattern) -> bool:
        """Report the samples that the pattern judges wrongly; return whether there are none."""
        found = True
        for place in _texts_under(tree, "samples"):
            if (0, len(place.value)) not in pattern.spans(place.value):
                message = f"the pattern does not find all of the sample '{place.value:.60}'"
                self.problems.add(place, message, "Correct the pattern, or the sample.")
                found = False
        for place in _texts_under(tree, "not_samples"):
            if pattern.search(place.value):
                message = f"the pattern finds something in '{place.value:.60}'"
                self.problems.add(place, message, "Make the pattern narrower.")
                found = False
        return found

    # --- Contracts --------------------------------------------------------------------------------

    def _read_contracts(self, read: Iterable[tuple[Map, Any]]) -> Iterator[ContractSpec]:
        seen: dict[str, int] = {}
        for tree, values in read:
            if values is WRONG or "id" not in values:
                continue
            self._check_unique(values["id"], tree.values["id"], seen, "contract")
            if (contract := self._read_contract(tree, values)) is not None:
                yield contract

    def _check_unique(self, name: str, place: Place, seen: dict[str, int], what: str) -> None:
        if name in seen:
            message = f"the id '{name}' is taken (line {seen[name]})"
            self.problems.add(place, message, f"Give each {what} an id of its own.")
        seen.setdefault(name, place.line)

    def _read_contract(self, tree: Map, values: Mapping[str, Any]) -> ContractSpec | None:
        kind = Kind(values["type"])
        meaning = self._meaning({Kind.POST: "post", Kind.SESSION: "limit"}.get(kind, "pre"))
        when = self._read_when(tree, values, kind, meaning)
        holder, then, effect = self._read_then(tree, values, kind)
        if isinstance(holder, Map):
            self._check_then(holder, then, effect, meaning, kind)
        if "scope" in values:
            self._check_scope(tree.values["scope"], values["scope"])
        if kind is Kind.POST:
            if "when" in values and when is None:
                return None
            when, effect, then = self._read_post(tree, values, when, effect, then)
        without_condition = when is None and kind in (Kind.PRE, Kind.POST)
        if without_condition or effect is None or "message" not in then:
            return None
        if when is not None:
            self._check_when(values, when, effect)
        return ContractSpec(
            id=values["id"],
            kind=kind,
            effect=_EFFECTS.get(effect, effect),
            style=effect if effect in STYLES else "redact",
            message=then["message"],
            tools=_tools_of(values),
            mode=values.get("mode"),
            enabled=values.get("enabled", True),
            tags=then.get("tags", ()),
            metadata=then.get("metadata", {}),
            timeout=then.get("timeout", 300),
            timeout_effect=then.get(self.words.timeout_effect, "deny"),
            approvers=self._read_approvers(then) if effect == "approve" else None,
            when=when,
            scope=values.get("scope", SESSION_SCOPE),
            missing_args=values.get("missing_args"),
            limits=values.get("limits", {}),
            budgets=self._read_budgets(tree.values.get("limits")),
            bounds=_bounds_of(values) if kind is Kind.SANDBOX else {},
            timezone=self.timezone,
            source=self.source,
            place=tree.values["id"],
        )

    def _read_when(
        self, tree: Map, values: Mapping[str, Any], kind: Kind, meaning: Meaning
    ) -> Expression | None:
        """Return the condition; None when there is none, or when something in it is wrong."""
        if "when" in values:
            return meaning.of(values["when"])
        return ALWAYS if kind is Kind.PRE and "when" not in tree.values else None

    def _read_post(
        self, tree: Map, values: Mapping[str, Any], when: Any, effect: Any, then: Any
    ) -> tuple[Any, Any, Any]:
        """Return condition, effect and message of a postcondition, with defaults for those that are
        left out.

        ``redact`` is a condition too: the result contains something of these kinds. A redaction
        without any condition is one of secrets.
        """
        kinds = values.get("redact")
        if kinds is None and when is None and effect in STYLES:
            kinds = (SECRETS,)
        if "then" not in values and kinds is not None:
            message = f"The result held {join_kinds(kinds)}, which were taken out."
            effect, then = "redact", {"message": message}
        if kinds is not None:
            found = self._meaning("post").detection(kinds, tree.values.get("redact", tree))
            when = found if when is None else All((when, found))
        return All(()) if when is None else when, effect, then

    def _read_then(self, tree: Map, values: Mapping[str, Any], kind: Kind) -> tuple[Any, Any, Any]:
        """Return the mapping that has the consequence of a violation, its message and its
        effect.
        """
        if kind is Kind.SANDBOX:  # there it stands beside the bounds
            self._check_bounds(tree)
            return tree, values, values.get("outside", "deny")
        then = values.get("then", {})
        return tree.values.get("then"), then, then.get(self.words.effect)

    def _read_approvers(self, then: Mapping[str, Any]) -> Approvers | None:
        said = then.get("approvers")
        if said is None:
            return None
        escalation = said.get("escalate", {})
        try:
            return Approvers(
                roles=said.get("roles", ()),
                count=said.get("count", 1),
                not_requester="not" in said,
                escalate_after_s=escalation.get("after"),
                escalate_to=escalation.get("to", ()),
            )
        except EdictumConfigError:
            if not self.problems.errors:
                raise
            return None  # the part of it that is wrong is reported

    # --- Amounts ----------------------------------------------------------------------------------

    def _read_tools(self, tools: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the tool table with the selectors of its amounts looked up."""
        return {
            tool: {
                key: self._read_amounts(key, value) if key in AMOUNT_KEYS else value
                for key, value in settings.items()
            }
            for tool, settings in tools.items()
        }

    def _read_amounts(self, key: str, amounts: Mapping[str, Scalar]) -> dict[str, AmountSpec]:
        read: dict[str, AmountSpec] = {}
        for name, place in amounts.items():
            try:
                value = place.value
                if isinstance(value, str):
                    value = parse_amount(value, key, self.language.selectors)
                message = f"no limit in this bundle reads the amount '{name}'"
                hint = (
                    "It is only counted; to bound it, add it to a session contract's max_amounts."
                )
                read[name] = AmountSpec(value, self.problems.make_warning(place, message, hint))
            except SelectorError as exc:
                self.problems.add(place, str(exc), exc.hint)
        return read

    def _read_budgets(self, limits: Tree | None) -> dict[str, BundleProblem]:
        """Return the amounts that limits read, with the warning for when no tool states them."""
        keys = limits.keys if isinstance(limits, Map) else {}
        places = {"cost": keys["max_cost"]} if "max_cost" in keys else {}
        amounts = limits.values.get("max_amounts") if isinstance(limits, Map) else None
        places |= amounts.keys if isinstance(amounts, Map) else {}
        return {name: self._make_budget_warning(name, place) for name, place in places.items()}

    def _make_budget_warning(self, name: str, place: Place) -> BundleProblem:
        message = f"no tool in this bundle states the amount '{name}'"
        hint = (
            "Calls must state it with amounts=, or a tool under 'tools:', for example 'amounts:"
            f" {{{name}: args.{name}}}'."
        )
        return self.problems.make_warning(place, message, hint)

    # --- Checks -----------------------------------------------------------------------------------

    def _check_then(
        self, holder: Map, then: Mapping[str, Any], effect: str | None, meaning: Meaning, kind: Kind
    ) -> None:
        """Check the message, and that options for asking a person are given only where one is
        asked.
        """
        if "message" in then:
            check_message(then["message"], holder.values["message"], meaning, kind)
        if "approvers" in then and then.get(self.words.timeout_effect) == "allow":
            message = "silence would approve the call, without any of the approvers"
            hint = f"Remove '{self.words.timeout_effect}', or 'approvers'."
            self.problems.add(holder.keys["approvers"], message, hint)
        for key in ("timeout", self.words.timeout_effect, "approvers"):
            if effect == "deny" and key in then:
                message = f"'{key}' has no effect here: the call is denied without asking a person"
                hint = f"Remove it, or use '{self.words.approve}'."
                self.problems.warn(holder.keys[key], message, hint)

    def _check_scope(self, place: Place, scope: str) -> None:
        try:
            parse_scope(scope, self.language.selectors)
        except SelectorError as exc:
            self.problems.add(place, str(exc), exc.hint)

    def _check_bounds(self, tree: Map) -> None:
        """Report the bounds of a sandbox that cannot be used, where their place is known."""
        # The parts of the sandbox are large, and few bundles need them.
        from edictum.contracts.sandbox._domains import DomainBounds
        from edictum.contracts.sandbox._paths import PathBounds

        for place in _texts_under(tree.values.get("allows"), "commands"):
            if len(place.value.split()) > 1:
                message = "a program's name has no spaces, so this allows nothing"
                self.problems.warn(place, message, "Write the name alone, without arguments.")
        for key in ("within", "not_within", "cwd"):
            for place in _texts_under(tree, key):
                hint = "Write a directory's path."
                self._try(place, lambda path: PathBounds((path,), (), None), "a directory", hint)
                self._check_directory(place)
        for key in ("allows", "not_allows"):
            for place in _texts_under(tree.values.get(key), "domains"):
                hint = "Write hosts or patterns such as '*.example.com': no scheme, port or path."
                self._try(place, lambda domain: DomainBounds((domain,), ()), "a domain", hint)

    def _check_directory(self, place: Scalar) -> None:
        """Check placeholders; warn where the model, or the process, chooses the directory."""
        self._meaning("pre").fill_text(place.value, place)
        names = [part.name for part in find_placeholders(place.value) if not part.escaped]
        if chosen := [name for name in names if name.startswith("args.")]:
            message = f"'{{{chosen[0]}}}' is chosen by the model, so it bounds nothing"
            hint = "Use what the program knows, such as {principal.org_id}."
            self.problems.warn(place, message, hint)
        if not place.value.startswith(("/", "~")) and place.value != ".":
            message = (
                f"'{place.value}' starts from the directory in which the process happens to run"
            )
            self.problems.warn(place, message, "Write an absolute path.")

    def _try(self, place: Scalar, use: Callable[[str], Any], what: str, hint: str) -> None:
        try:
            use(place.value)
        except ValueError as exc:
            text = str(exc)
            message = text if " " in text else f"'{place.value}' is not {what}"
            self.problems.add(place, message, hint)

    def _check_when(self, values: Mapping[str, Any], when: Expression, effect: str) -> None:
        read = [(leaf.place, selector) for leaf in leaves(when) for selector in leaf.selectors]
        for place, selector in read:
            if selector.root == "session" and effect != "deny":
                message = f"'{selector.text}' cannot be combined with asking a person"
                deny = f"'{self.words.effect}: {self.words.deny}'"
                hint = f"Use {deny}, or remove the condition on the session."
                self.problems.add(place, message, hint)
        self._check_condition(when)
        self._check_tool_name(_tools_of(values), when)

    def _check_condition(self, when: Expression) -> None:
        """Warn about negations of missing fields, and about contradictions."""
        found = list(leaves(when))
        checked = {
            leaf.selector.text for leaf in found if leaf.operator.name in ("exists", "empty")
        }
        for leaf in found:
            name = leaf.selector.text
            if leaf.operator.negative and leaf.if_missing is False and name not in checked:
                message = f"'{leaf.operator.name}' does not hold when '{name}' is missing"
                hint = (
                    f"Add '{name}: {{exists: false}}' under any, or, if meant, '{{exists: true}}'."
                )
                self.problems.warn(leaf.place, message, hint)
        for first, second in contradictions(when):
            message = f"this contract can never fire: '{first}' and '{second}' cannot both hold"
            self.problems.warn(second.place, message, "Use 'any:', or remove one of them.")

    def _check_tool_name(self, tools: Sequence[str], when: Expression) -> None:
        for leaf in when.items if isinstance(when, All) else (when,):
            if not isinstance(leaf, Leaf) or leaf.selector.root != "tool":
                continue
            if leaf.operator.name not in ("equals", "in") or leaf.computed is not None:
                continue
            names = leaf.value if leaf.operator.name == "in" else (leaf.value,)
            if self._can_meet(tools, Names(map(str, names)), leaf.place) is False:
                wanted = f"it is for {join_words(tools)}, and wants tool.name {leaf.value!r}"
                message = f"this contract can never fire: {wanted}"
                self.problems.warn(leaf.place, message, "Put the name under 'tool:'.")

    def _can_meet(self, tools: Sequence[str], names: Names, place: Place) -> bool | None:
        """Return whether a tool can have one of the names; None, with one warning, for too many."""
        was_left = self.reach.left >= 0
        met = self.reach.meet(tools, names)
        if met is None and was_left:
            message = "there are too many names and globs to find all contracts that can never fire"
            self.problems.warn(place, message, "Use fewer globs.")
        return met

    def _check_tool_table(self, bundle: Bundle) -> None:
        """Warn about contracts for tools that the bundle's table does not list."""
        known, denied = Names(bundle.tools), bundle.unlisted_tools == "deny"
        if not known.all:
            if denied:
                defaults = self.tree.values["defaults"]
                place = defaults.keys["unlisted_tools"] if isinstance(defaults, Map) else defaults
                hint = "List the tools that may be called under 'tools:'."
                self.problems.warn(place, "no tool is listed, so every call is denied", hint)
            return
        guesses = Guesses(known)
        for spec in bundle.contracts:
            judged = denied and spec.kind is not Kind.SESSION
            if judged and self._can_meet(spec.tools, known, spec.place) is False:
                self._report_unreachable(spec, guesses)
            else:
                self._check_spelling(spec, guesses)

    def _report_unreachable(self, spec: ContractSpec, guesses: Guesses) -> None:
        tools = join_words(spec.tools)
        message = f"the contract '{spec.id}' is never asked: {tools} is not listed under 'tools:'"
        guess = next(filter(None, map(guesses.of, spec.tools)), "")
        hint = f"{guess}Unlisted tools are denied; list the tool, or remove the contract."
        self.problems.warn(spec.place, message, hint)

    def _check_spelling(self, spec: ContractSpec, guesses: Guesses) -> None:
        limited = (tool for name in TOOL_FIELDS for tool in spec.limits.get(name, ()))
        for tool in dict.fromkeys((*spec.tools, *limited)):
            if guess := guesses.of(tool):
                message = (
                    f"the contract '{spec.id}' is for '{tool}', which is not listed under 'tools:'"
                )
                hint = f"{guess}If there is such a tool, list it as well."
                self.problems.warn(spec.place, message, hint)

    # --- Success rules ----------------------------------------------------------------------------

    def _read_success(self, read: Iterable[tuple[Map, Any]]) -> Iterator[SuccessSpec]:
        seen: dict[str, int] = {}
        for number, (tree, values) in enumerate(read):
            if values is WRONG or "failure_when" not in values:
                continue
            name = values.get("id", f"success[{number}]")
            self._check_unique(name, tree.values.get("id", tree), seen, "rule")
            meaning = self._meaning("success")
            when = meaning.of(values["failure_when"])
            if "message" in values:
                check_message(values["message"], tree.values["message"], meaning, Kind.POST)
            if when is not None and values.get("enabled", True):
                self._check_condition(when)
                yield SuccessSpec(
                    id=name,
                    tools=_tools_of(values),
                    failure_when=when,
                    message=values.get("message"),
                    retryable=values.get("retryable"),
                    timezone=self.timezone,
                )


# What the words for effects on results are, apart from how they show what was taken out.
_EFFECTS = {"mask": "redact", "hash": "redact", "suppress": "deny"}


def _tools_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    tools: tuple[str, ...] = values.get("tools") or (values.get("tool", "*"),)
    return tools


def _texts_under(holder: Tree | None, key: str) -> list[Scalar]:
    """Return the text or the texts of a list under a key."""
    found = holder.values.get(key) if isinstance(holder, Map) else None
    items = found.items if isinstance(found, Seq) else [found]
    return [item for item in items if isinstance(item, Scalar) and isinstance(item.value, str)]


def _bounds_of(values: Mapping[str, Any]) -> dict[str, Any]:
    allows, not_allows = values.get("allows", {}), values.get("not_allows", {})
    return {
        "within": values.get("within", ()),
        "not_within": values.get("not_within", ()),
        "cwd": values.get("cwd"),
        "commands": allows.get("commands", ()),
        "domains": allows.get("domains", ()),
        "not_domains": not_allows.get("domains", ()),
    }
