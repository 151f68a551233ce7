"""Chat templates, rendered as HF tokenizers do, in a sandbox: they are untrusted."""

import datetime
import json
from collections.abc import Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

from models.errors import PromptError


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; it renders as is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _refuse(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def render(
    template: str, messages: Sequence[dict[str, Any]], variables: dict[str, Any]
) -> str:
    """Render the prompt text of `messages`, up to the assistant's answer.

    PromptError if the template is broken, unsafe, or refuses the messages.
    """
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _strftime_now
    values = {"tools": None, "documents": None, "add_generation_prompt": True}
    try:
        compiled = environment.from_string(template)
        return compiled.render(messages=list(messages), **{**values, **variables})
    except (jinja2.exceptions.TemplateError, TypeError, OverflowError) as error:
        raise PromptError(
            f"the chat template refuses these messages ({error}): use the roles and "
            "contents that the template supports"
        ) from error
