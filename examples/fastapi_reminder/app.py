"""A service that reminds users of their trial's end, unless they log in before."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request

from tarry import AsyncClient, Conflict, NotFound

REMIND_AFTER = os.environ.get("REMIND_AFTER", "3d")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One client for the whole service: its calls share connections."""
    async with AsyncClient() as app.state.tarry:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/users/{user}/trial")
async def begin_trial(user: str, request: Request) -> dict[str, int | None]:
    """Begin a trial, or begin it again: one reminder waits for each user."""
    scheduled = await request.app.state.tarry.schedule(
        "reminders",
        {"user": user, "text": "your trial ends tomorrow"},
        delay=REMIND_AFTER,
        name=f"trial-{user}",
        on_conflict="replace",
    )
    return {"remind_at_ms": scheduled.due_at_ms}


@app.post("/users/{user}/login")
async def log_in(user: str, request: Request) -> dict[str, str]:
    """Log in. A reminder that waits is not sent any more."""
    try:
        await request.app.state.tarry.cancel(name=f"trial-{user}")
    except NotFound:
        return {"reminder": "there was none"}
    except Conflict as conflict:
        return {"reminder": f"is {conflict.state} already"}
    return {"reminder": "cancelled"}
