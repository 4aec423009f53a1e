"""Tools whose hints name more than JSON has. In a module of their own, where another process finds
them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from edictum.harness import DeadlineToken, tool


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    name: str
    colour: Colour = Colour.RED


class Order(BaseModel):
    model_config = ConfigDict(strict=True)

    items: tuple[Item, ...]
    day: date

    @field_validator("items")
    @classmethod
    def some(cls, items: tuple[Item, ...]) -> tuple[Item, ...]:
        if not items:
            raise ValueError("order something")
        return items


ORDER: dict[str, Any] = {"items": [{"name": "tea"}], "day": "2024-05-01"}
READ = "tea RED 2024"


def told(order: Order) -> str:
    return f"{order.items[0].name} {order.items[0].colour.name} {order.day.year}"


@tool(side_effect="write", isolation="process")
def buy_elsewhere(order: Order, deadline: DeadlineToken) -> dict[str, Any]:
    return {"told": told(order), "pid": os.getpid(), "time": deadline.remaining_s() > 0}


@tool(side_effect="write", isolation="process")
async def buy_elsewhere_later(order: Order) -> dict[str, Any]:
    return {"told": told(order), "pid": os.getpid(), "time": True}


def buy_plainly(order: Order) -> dict[str, Any]:
    return {"told": told(order), "pid": os.getpid(), "time": True}


@dataclass
class Buyer:
    """Compares by its values, and so has no hash."""

    name: str

    def __call__(self, order: Order) -> dict[str, Any]:
        return {"told": told(order), "pid": os.getpid(), "time": self.name == "buyer"}


by_object = tool(name="buy_by_object", side_effect="write", isolation="process")(Buyer("buyer"))
renamed = tool(name="buy_renamed", side_effect="write", isolation="process")(buy_plainly)
