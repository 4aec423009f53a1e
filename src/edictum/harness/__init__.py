"""The harness: one turn of an agent, in which every dispatch ends in time and in exactly one
outcome.

Schemas from type hints and validation need the extra ``edictum[harness]``; they are loaded when
they are first used.
"""

from edictum.errors import ModelError
from edictum.harness.arg_validator import MAX_REPAIR_ATTEMPTS, ToolArgValidator
from edictum.harness.artifact_store import ArtifactError, ArtifactRef, ArtifactStore
from edictum.harness.attachments import File, Image
from edictum.harness.messages import ModelReply, Usage, messages_from_json, messages_to_json
from edictum.harness.model_calls import ModelCall
from edictum.harness.model_events import (
    ModelEvent,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from edictum.harness.models import anthropic_model, openai_model, openai_responses_model
from edictum.harness.parked_turn import ParkedTurn
from edictum.harness.replay_control import ReplayControl
from edictum.harness.scheduler import ToolScheduler, ToolWave
from edictum.harness.tool_executor import BoundedToolExecutor, ToolCallRequest
from edictum.harness.tool_registry import ToolRegistry, tool
from edictum.harness.tool_spec import ResourceKey, ToolSpec, spec_from_mcp
from edictum.harness.turn import run_turn, run_turn_sync, stream_turn
from edictum.harness.turn_budget import DeadlineExceeded, DeadlineToken, TurnBudget
from edictum.harness.turn_call import Turn
from edictum.harness.turn_events import ToolCallEnded, ToolCallMade, TurnEnded, TurnEvent
from edictum.harness.turn_result import TurnResult
from edictum.harness.turn_state import ToolTraceEntry, TurnState

__all__ = [
    "MAX_REPAIR_ATTEMPTS",
    "ArtifactError",
    "ArtifactRef",
    "ArtifactStore",
    "BoundedToolExecutor",
    "DeadlineExceeded",
    "DeadlineToken",
    "File",
    "Image",
    "ModelCall",
    "ModelError",
    "ModelEvent",
    "ModelReply",
    "ReasoningDelta",
    "ParkedTurn",
    "RefusalDelta",
    "ReplayControl",
    "ResourceKey",
    "TextDelta",
    "ToolArgValidator",
    "ToolCallDelta",
    "ToolCallEnded",
    "ToolCallMade",
    "ToolCallRequest",
    "ToolCallStarted",
    "ToolRegistry",
    "ToolScheduler",
    "ToolSpec",
    "ToolTraceEntry",
    "ToolWave",
    "Turn",
    "TurnBudget",
    "TurnEnded",
    "TurnEvent",
    "TurnResult",
    "TurnState",
    "Usage",
    "anthropic_model",
    "messages_from_json",
    "messages_to_json",
    "openai_model",
    "openai_responses_model",
    "run_turn",
    "run_turn_sync",
    "spec_from_mcp",
    "stream_turn",
    "tool",
]
