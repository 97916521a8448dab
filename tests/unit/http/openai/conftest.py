from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for call in m.tool_calls or [] %}({{ call.function.arguments.x }}){% endfor %}"
    "{% endfor %}{{ more }}{{ tools | length if tools else '' }}"
    "{% if add_generation_prompt %}>{% endif %}"
)


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A directory with a chat template, and nothing else."""
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    return str(tmp_path)


@pytest_asyncio.fixture
async def chatting(serve: Callable[..., Any], model: str) -> AsyncIterator[Callable[..., Any]]:
    """Make apps whose model has the template; their rendering processes are ended."""
    made: list[Any] = []

    def make(**options: Any) -> Any:
        made.append(serve(model=model, **options))
        return made[-1]

    yield make
    for serving in made:
        serving.app.state.openai.template.process.close()
