"""Templates that hang, and chats beside them."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from hotswap.errors import QueueFull
from hotswap.http.openai.template_pool import TemplatePool
from hotswap.http.openai.template_process import TemplateFailed
from hotswap.http.openai.turns import Turns
from tests.unit.http.openai.test_template_process import ENDLESS

PATH = "/v1/chat/completions"


@pytest.fixture
def pool() -> Iterator[TemplatePool]:
    made = TemplatePool(size=2, limit_s=60)
    yield made
    made.close()


def test_one_process_is_enough_for_one_at_a_time(pool: TemplatePool) -> None:
    for number in range(3):
        assert pool.render("{{ x }}", {"x": number}) == str(number)
    assert repr(pool) == "<TemplatePool 2 of 2 idle>"
    assert [process._child is not None for process in pool._every].count(True) == 1


def test_a_template_that_fails_gives_its_process_back(pool: TemplatePool) -> None:
    for _ in range(3):
        with pytest.raises(TemplateFailed, match="Expected"):
            pool.render("{% for %}", {})
    assert repr(pool) == "<TemplatePool 2 of 2 idle>"


@pytest.fixture
def hanging(chatting: Callable[..., Any], model: str) -> Any:
    """An app whose template hangs when it is asked to."""
    Path(model, "chat_template.jinja").write_text(
        "{% if messages[0].content == 'hang' %}" + ENDLESS + "{% endif %}{{ messages[0].content }}"
    )
    return chatting()


async def test_a_chat_that_hangs_holds_up_no_other(hanging: Any) -> None:
    serving = hanging
    at_start = serving.app.state.openai

    async def chat(text: str) -> tuple[int, Any]:
        body = {"messages": [{"role": "user", "content": text}]}
        reply: tuple[int, Any] = await serving.json("POST", PATH, json=body)
        return reply

    replies: list[tuple[int, Any]] = []

    async def hang() -> None:
        replies.append(await chat("hang"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hang)
        while repr(at_start.template.process) == "<TemplatePool 4 of 4 idle>":
            await anyio.lowlevel.checkpoint()
        for text in "abc":
            status, reply = await chat(text)
            assert (status, reply["choices"][0]["message"]["content"]) == (200, "ok")
        assert not replies, "it hangs still"
        # Nobody waits for the rest of its ten seconds.
        (busy,) = [one for one in at_start.template.process._every if one._turn.locked()]
        assert busy._child is not None
        busy._child.kill()
    ((status, reply),) = replies
    assert (status, "its process ended" in reply["error"]["message"]) == (400, True)


async def test_turns_are_bounded_in_number_and_in_time() -> None:
    turns = Turns(2, wait_s=0)
    go_on = threading.Event()
    done: list[int] = []

    async def work(number: int) -> None:
        def block() -> int:
            go_on.wait()
            return number

        done.append(await turns.run(block))

    async with anyio.create_task_group() as tasks:
        for number in range(2):
            tasks.start_soon(work, number)
        await anyio.wait_all_tasks_blocked()
        assert repr(turns) == "<Turns 0 of 2 free>"
        with pytest.raises(QueueFull, match="2 chat templates are being rendered"):
            await turns.run(lambda: 3)
        go_on.set()
    assert sorted(done) == [0, 1]
    assert await turns.run(lambda: 4) == 4


async def test_work_that_raises_gives_its_turn_back() -> None:
    turns = Turns(1, wait_s=0)

    def fail() -> None:
        raise TemplateFailed("no")

    for _ in range(2):
        with pytest.raises(TemplateFailed):
            await turns.run(fail)
    assert repr(turns) == "<Turns 1 of 1 free>"


async def test_a_chat_without_a_turn_is_told_to_come_again(chatting: Callable[..., Any]) -> None:
    serving = chatting()
    object.__setattr__(serving.app.state.openai, "renderers", Turns(1, wait_s=0))
    async with serving.app.state.openai.renderers._free:
        body = {"messages": [{"role": "user", "content": "hi"}]}
        status, reply = await serving.json("POST", PATH, json=body)
    assert (status, reply["error"]["type"]) == (429, "rate_limit_error")
