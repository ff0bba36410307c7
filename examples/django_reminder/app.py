"""The smallest Django project that reminds users of their trial's end, unless they log in before.

python app.py runserver 8002
"""

import os
import sys

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.http import require_POST

from tarry import Client, Conflict, NotFound

settings.configure(
    DEBUG=False,
    SECRET_KEY=os.environ.get("SECRET_KEY", "for this example only"),
    ALLOWED_HOSTS=["localhost", "127.0.0.1"],
    ROOT_URLCONF=__name__,
)

# Threads may share a client: each call takes a connection of its own.
tarry = Client()


def trial(_request: HttpRequest, user: str) -> JsonResponse:
    """Begin a trial, or begin it again: one reminder waits for each user."""
    scheduled = tarry.schedule(
        "reminders",
        {"user": user, "text": "your trial ends tomorrow"},
        delay=os.environ.get("REMIND_AFTER", "3d"),
        name=f"trial-{user}",
        on_conflict="replace",
    )
    return JsonResponse({"remind_at_ms": scheduled.due_at_ms})


def login(_request: HttpRequest, user: str) -> JsonResponse:
    """Log in. A reminder that waits is not sent any more."""
    try:
        tarry.cancel(name=f"trial-{user}")
    except NotFound:
        return JsonResponse({"reminder": "there was none"})
    except Conflict as conflict:
        return JsonResponse({"reminder": f"is {conflict.state} already"})
    return JsonResponse({"reminder": "cancelled"})


urlpatterns = [
    path("users/<slug:user>/trial", require_POST(trial)),
    path("users/<slug:user>/login", require_POST(login)),
]

if __name__ == "__main__":
    django.setup()
    execute_from_command_line(sys.argv)
