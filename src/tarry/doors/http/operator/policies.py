"""Policies: what is set at the broker, a namespace or a topic, and what is in force there."""

from typing import Final

import msgspec

from tarry.core.errors import NotFound
from tarry.core.names import parse_namespace, parse_topic
from tarry.core.rules.policy import Effective, Policy, PolicyChanges, Scope
from tarry.doors.http.bodies import check_json, decode, read_query
from tarry.doors.http.responses import json_response, nothing
from tarry.doors.http.shapes import PolicyQuery
from tarry.engine.engine import Engine
from tarry.http.request import Request
from tarry.http.response import Response

MERGE_PATCH: Final = "application/merge-patch+json"
"""The content type of changes (RFC 7396); plain JSON is taken too."""

_policy_decoder = msgspec.json.Decoder(Policy)
_changes_decoder = msgspec.json.Decoder(PolicyChanges)


class PolicyEndpoints:
    """The endpoints under `/v1/policies`. All of them are for admins."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def get(self, request: Request) -> Response:
        """GET: what is set here, or with `effective=true` what is in force here."""
        scope, name = _reach(request)
        query = read_query(request.query, PolicyQuery)
        if query.effective:
            return json_response(self._effective(scope, name))
        policy = self._engine.policy(scope, name)
        if policy is None and query.or_empty:
            policy = Policy()
        if policy is None:
            raise NotFound("no policy is set here; ?effective=true shows the one in force")
        return json_response(policy)

    def _effective(self, scope: Scope, name: str) -> Effective:
        if scope == "topic":
            return self._engine.effective_policy(name, parse_topic(name).namespace_name)
        if scope == "namespace":
            return self._engine.effective_policy(None, name)
        return self._engine.broker_policy()

    async def put(self, request: Request) -> Response:
        """PUT: set all of it; what is left out is left to the level above."""
        scope, name = _reach(request)
        check_json(request)
        policy = decode(_policy_decoder, request.body)
        await self._engine.set_policy(scope, name, policy)
        return json_response(policy)

    async def patch(self, request: Request) -> Response:
        """PATCH: set some fields of it, and leave those that are null to the level above; the others stay as they are."""
        scope, name = _reach(request)
        if request.media_type != MERGE_PATCH.encode():
            check_json(request)
        changes = decode(_changes_decoder, request.body)
        # Read and set in one turn of the loop: of two that change a policy at once, neither undoes the other.
        policy = (self._engine.policy(scope, name) or Policy()).changed(changes)
        await self._engine.set_policy(scope, name, policy)
        return json_response(policy)

    async def delete(self, request: Request) -> Response:
        """DELETE: leave everything to the level above. There may be nothing to remove."""
        scope, name = _reach(request)
        await self._engine.set_policy(scope, name, None)
        return nothing()


def _reach(request: Request) -> tuple[Scope, str]:
    """The place that the path names, once it is clear that the caller governs it."""
    caller = request.caller
    parts = request.params
    if "tenant" not in parts:
        return "broker", ""
    namespace = parse_namespace(f"{parts['tenant']}/{parts['namespace']}")
    caller.require_namespace(namespace)
    if "topic" not in parts:
        return "namespace", namespace
    return "topic", parse_topic(f"{namespace}/{parts['topic']}").full
