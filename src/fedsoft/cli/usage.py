"""What is wrong with a command line, in one sentence like all others."""

from __future__ import annotations

import re

import click

from fedsoft.errors import unknown

KINDS = {"integer": "a whole number", "float": "a number", "boolean": "true or false"}


def usage(error: click.ClickException) -> str:
    """The complaint, and where help is."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context is not None else "fedsoft"
    return f"{_complaint(error, context)} (see '{command} --help')"


def _complaint(error: click.ClickException, context: click.Context | None) -> str:
    known = context.command if context is not None else None
    if isinstance(error, click.NoSuchOption):
        options = [name for each in known.params for name in each.opts] if known is not None else error.possibilities
        return str(unknown("option", error.option_name, [name for name in options or () if name.startswith("-")]))
    if isinstance(known, click.Group) and (named := re.match(r"No such command '(.*?)'", error.message)):
        return str(unknown("command", named[1], known.commands))
    if isinstance(error, click.BadParameter) and error.param is not None:
        name = (
            error.param.opts[0] if error.param.param_type_name == "option" else error.param.make_metavar(_any(context))
        )
        if isinstance(error, click.MissingParameter):
            return f"{name} is missing"
        return f"{name} {_value(error.message, error.param)}"
    text = error.format_message().rstrip(".")
    return text[:1].lower() + text[1:]


def _value(message: str, param: click.Parameter) -> str:
    """What is wrong with a value."""
    if told := re.fullmatch(r"(.*) is not a valid (\w+)\.", message, re.DOTALL):
        return f"{told[1]} is not allowed: should be {KINDS.get(told[2], told[2])}"
    kind = param.type
    if isinstance(kind, click.IntRange | click.FloatRange) and (
        told := re.match(r"(\S+) is not in the range", message)
    ):
        bounds = [
            f"at {word} {value:g}" for word, value in (("least", kind.min), ("most", kind.max)) if value is not None
        ]
        return f"{told[1]} is not allowed: should be {' and '.join(bounds)}"
    return f"is not allowed: {message.rstrip('.')}"


def _any(context: click.Context | None) -> click.Context:
    return context or click.Context(click.Command("fedsoft"))
