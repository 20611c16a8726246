"""Write src/schema.ts: the messages of the viewer's server as TypeScript types, from the OpenAPI of its routes.

Run it with the Python environment of phiseg after a change of src/phiseg/viewer/schema.py:

    python web/generate_types.py

All fields are required, including those of a request that have a default: the page always sends them.
"""

import re
import textwrap
from pathlib import Path
from typing import Any, cast

from phiseg.viewer.server import Viewer, create_app

TARGET = Path(__file__).parent / "src" / "schema.ts"
HEADER = "/** The messages between page and server. Written by generate_types.py: do not edit. */\n"
SIMPLE = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
WIDTH = 120


def main() -> None:
    """Write the file."""
    TARGET.write_text(generate(), encoding="utf-8")


def generate() -> str:
    """Return the content of schema.ts."""
    app = create_app(cast(Viewer, None))  # its routes are described and never called
    openapi = app.openapi()
    parts = [HEADER]
    for name, schema in openapi["components"]["schemas"].items():
        if name not in ("HTTPValidationError", "ValidationError"):  # of FastAPI; the server answers otherwise
            parts.append(_declare(name, schema))
    for path in openapi["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", ()):
                if "enum" in parameter["schema"]:
                    name = operation["summary"] + parameter["schema"]["title"]
                    parts.append(f"export type {name} = {_type(parameter['schema'])};\n")
    return "\n".join(parts)


def _declare(name: str, schema: dict[str, Any]) -> str:
    comment = _comment(schema.get("description", ""), indent="")
    if "properties" not in schema:
        return f"{comment}export type {name} = {_type(schema)};\n"
    lines = [f"{comment}export interface {name} {{\n"]
    for key, field in schema["properties"].items():
        lines.append(f"{_comment(field.get('description', ''), indent='  ')}  {key}: {_type(field)};\n")
    return "".join([*lines, "}\n"])


def _type(schema: dict[str, Any]) -> str:
    """Return the TypeScript type of a JSON schema."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "const" in schema:
        return f'"{schema["const"]}"'
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " | ".join(map(_type, schema[key]))
    match schema["type"]:
        case "array" if "prefixItems" in schema:
            return f"[{', '.join(map(_type, schema['prefixItems']))}]"
        case "array" if schema.get("minItems", 0) == schema.get("maxItems"):
            return f"[{', '.join([_type(schema['items'])] * schema['maxItems'])}]"
        case "array":
            return f"{_type(schema['items'])}[]"
        case "object":
            return f"Record<string, {_type(schema['additionalProperties'])}>"
        case simple:
            return SIMPLE[simple]


def _comment(text: str, *, indent: str) -> str:
    """Return a text as a comment of one or more lines, or nothing."""
    words = re.sub(r"\bNone\b", "null", " ".join(text.split()))
    if not words:
        return ""
    first, *others = textwrap.wrap(words, WIDTH - len(indent) - len("/**  */"))
    return "\n".join([f"{indent}/** {first}", *(f"{indent} *  {line}" for line in others)]) + " */\n"


if __name__ == "__main__":
    main()
