"""The two vocabularies of bundles: this library's, and that of the older library's rulesets."""

from __future__ import annotations

from dataclasses import dataclass

DENY, APPROVE, ALLOW = "deny", "approve", "allow"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words of one vocabulary: its kind, its keys, and its words for deny and approve."""

    kind: str
    contracts: str
    effect: str
    timeout_effect: str
    deny: str
    approve: str

    def words_for(self, *meanings: str) -> dict[str, str]:
        """Return the words of this vocabulary, each with its meaning."""
        words = {DENY: self.deny, APPROVE: self.approve}
        return {words.get(meaning, meaning): meaning for meaning in meanings}


CONTRACT_BUNDLE = Vocabulary(
    "ContractBundle", "contracts", "effect", "timeout_effect", "deny", "approve"
)
RULESET = Vocabulary("Ruleset", "rules", "action", "timeout_action", "block", "ask")
VOCABULARIES = {vocabulary.kind: vocabulary for vocabulary in (CONTRACT_BUNDLE, RULESET)}
