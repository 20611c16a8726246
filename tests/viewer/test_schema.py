"""The messages of the server, and the types that the page takes them for."""

import json
import runpy
from pathlib import Path

from phiseg.viewer.schema import StreamedMessage

WEB = Path(__file__).parents[2] / "web"


def test_committed_types_match_the_server():
    generate = runpy.run_path(str(WEB / "generate_types.py"))["generate"]
    committed = (WEB / "src" / "schema.ts").read_text(encoding="utf-8")
    assert generate() == committed, "run `python web/generate_types.py`, and build the page again"


def test_every_line_of_an_answer_is_a_streamed_message(serve, lesions):
    served = serve(None, lesions)
    answers = [
        served.client.post("/api/predictions", json={"scan": "case-0", "point": point, "num_samples": 3})
        for point in ([0, 8, 8], [9, 9, 9])
    ]
    lines = [line for answer in answers for line in answer.text.splitlines()]
    for line in lines:
        assert StreamedMessage.model_validate_json(line).model_dump(mode="json") == json.loads(line)
    kinds = {json.loads(line)["type"] for line in lines}
    assert kinds == {"samples", "slice", "numbers", "volume", "scores", "levels", "done", "error"}
