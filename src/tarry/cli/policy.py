"""`policy show`, `policy set`, `policy remove`: what a level says, and what is in force there.

The flags of `policy set` are made of the description of each field in `tarry.core.rules.policy`.
"""

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Final, get_args

import typer

from tarry.cli import show
from tarry.cli.options import ConfigFile, JsonOption, Url, connect, duration_ms, topic_of
from tarry.client.shapes import Policy
from tarry.core.errors import NotFound
from tarry.core.names import parse_namespace
from tarry.core.rules import policy as described
from tarry.core.rules.policy import POLICY_FIELDS, PolicyField

INHERIT: Final = "inherit"
"""The value of a flag that leaves its field to the level above."""

Namespace = Annotated[
    str | None,
    typer.Option(
        metavar="TENANT/NAMESPACE", help="The namespace; without it and without --topic it is the broker."
    ),
]
Topic = Annotated[str | None, typer.Option(metavar="TOPIC", help="The topic.")]
_group = typer.Typer(
    name="policy", help="Policies of the broker, a namespace or a topic.", no_args_is_help=True
)


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    _group.command("show")(show_)
    _group.command("set")(_with_flags(set_))
    _group.command("remove")(remove)
    app.add_typer(_group)


def show_(
    namespace: Namespace = None,
    topic: Topic = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
) -> None:
    """Show the policy of a level, beside the one that is in force there."""
    place = _place(namespace, topic)
    with connect(config, url) as client:
        in_force = client.policy(effective=True, **place)
        try:
            here = client.policy(**place)
        except NotFound:
            here = Policy()
    if json:
        show.as_json({"set": here, "in_force": in_force})
        return
    show.rows(
        ("field", "set here", "in force"),
        [
            (name, *(told(field, getattr(level, name)) for level in (here, in_force)))
            for name, field in POLICY_FIELDS.items()
        ],
    )


def set_(
    namespace: Namespace = None,
    topic: Topic = None,
    json: JsonOption = False,
    url: Url = None,
    config: ConfigFile = None,
    **flags: str | None,
) -> None:
    """Change fields of a policy; fields without a flag stay as they are.

    A limit is lifted with `no-limit`, and `inherit` leaves a field to the level above.

    [bold]tarry policy set --namespace shop/orders --max-delay 30d --send-per-second inherit[/bold]
    """
    said = {name: text for name, text in flags.items() if text is not None}
    if not said:
        raise typer.BadParameter("say what to set, as in --max-delay 30d; --help shows the fields")
    clear = [name for name, text in said.items() if text == INHERIT]
    values = {name: read(name, text) for name, text in said.items() if text != INHERIT}
    place = _place(namespace, topic)
    with connect(config, url) as client:
        changed = client.update_policy(Policy(**values), clear=clear, **place)
    if json:
        show.as_json(changed)
        return
    show.facts([(name, told(POLICY_FIELDS[name], value)) for name, value in changed.said()])


def remove(
    namespace: Namespace = None, topic: Topic = None, url: Url = None, config: ConfigFile = None
) -> None:
    """Remove the policy of a level: the level above decides all of it."""
    with connect(config, url) as client:
        client.remove_policy(**_place(namespace, topic))


def flag_of(name: str) -> str:
    """The flag that sets a field."""
    return "--" + name.removesuffix("_ms").replace("_", "-")


def told(field: PolicyField, value: Any) -> str:
    """The value of a field as people read it."""
    if value is None:
        return ""
    if value in field.words and field.kind != "switch":
        return field.words[value]
    match field.kind:
        case "switch":
            return "on" if value else "off"
        case "duration":
            return show.span(value)
        case "rate":
            return f"{value:g}"
        case _:
            return str(value)


def read(name: str, text: str) -> Any:
    """The value that a flag gives; raises `BadParameter` naming the flag."""
    field = POLICY_FIELDS[name]
    for value, word in field.words.items():
        if text == word.replace(" ", "-"):
            return value
    try:
        return _READ[field.kind](name, text)
    except (ValueError, KeyError):
        raise typer.BadParameter(f"{text!r} is not {_metavar(name)}", param_hint=flag_of(name)) from None


def _read_choice(name: str, text: str) -> str:
    if text not in _choices(name):
        raise ValueError(text)
    return text


_READ: Final[Mapping[described.FieldKind, Callable[[str, str], Any]]] = {
    "switch": lambda _, text: {"on": True, "off": False}[text],
    "choice": _read_choice,
    "duration": lambda name, text: duration_ms(text, flag_of(name)),
    "bytes": lambda _, text: int(text),
    "count": lambda _, text: int(text),
    "rate": lambda _, text: float(text),
}


def _choices(name: str) -> tuple[str, ...]:
    hint = described.Policy.__annotations__[name]
    return get_args(get_args(get_args(hint)[0])[0])


def _metavar(name: str) -> str:
    field = POLICY_FIELDS[name]
    plain = {
        "switch": "on|off", "duration": "DURATION", "bytes": "BYTES", "count": "COUNT", "rate": "PER_SECOND",
    }.get(field.kind) or "|".join(_choices(name))  # fmt: skip
    return "|".join([plain, *(word.replace(" ", "-") for word in field.words.values())])


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for each field of a policy, in the place of its `**flags`."""
    own = [one for one in signature(command).parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    flags = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Option(
                    flag_of(name), metavar=_metavar(name), help=field.about, rich_help_panel="Fields"
                ),
            ],
        )
        for name, field in POLICY_FIELDS.items()
    ]
    command.__signature__ = Signature([*own, *flags])  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in (*own, *flags)}
    return command


def _place(namespace: str | None, topic: str | None) -> dict[str, Any]:
    if namespace is not None and topic is not None:
        raise typer.BadParameter("give --namespace or --topic, not both")
    if topic is not None:
        return {"topic": topic_of(topic)}
    return {} if namespace is None else {"namespace": parse_namespace(namespace)}
