"""Chat templates: the same text as transformers writes, from wherever the model keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from transformers import AutoTokenizer

from contrib.demo.smollm2 import find_gguf
from hotswap.http.openai.chat_template import ChatTemplate, TemplateFailed, load_chat_template
from hotswap.http.openai.template_process import TemplateProcess
from hotswap.testing.tiny_tokenizer import EOS_TOKEN, write_tokenizer

TALK = [
    {"role": "system", "content": "Be <brief> & kind."},
    {"role": "user", "content": "  Grüße, 世界! \n"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Once more"},
]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "q": "<é>"}},
    }
]
TEMPLATES = {
    "chatml": "{% for message in messages %}<|{{ message.role }}|>\n"
    "  {% generation %}{{ message['content'] }}{% endgeneration %}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "helpers": "{{ bos_token }}{% if not tools %}{{ pad_token }}{% endif %}"
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{{ tool | tojson(indent=2) }}{% endfor %}"
    "{% for message in messages %}{% if loop.index0 == 2 %}{% break %}{% endif %}"
    "{{ message.content | trim }}{% endfor %}{{ more | default('none') }}",
    "namespace": "{% set ns = namespace(seen=0) %}{% for m in messages %}"
    "{% set ns.seen = ns.seen + m.content|length %}{%- endfor %}\n  {{ ns.seen }}\n"
    "{% macro said(m) %}[{{ m.role.upper() }}]{{ m.content[::-1] }}{% endmacro %}"
    "{{ messages | map(attribute='role') | join(',') }}{{ said(messages[-1]) }}",
}


@pytest.fixture(scope="module")
def process() -> Iterator[TemplateProcess]:
    with_one = TemplateProcess()
    yield with_one
    with_one.close()


def model_directory(directory: Path, template: str) -> Path:
    write_tokenizer(directory, 320)
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    config = directory / "tokenizer_config.json"
    settings = json.loads(config.read_text())
    bos = {"content": "<s>", "__type": "AddedToken", "special": True}
    config.write_text(json.dumps(settings | {"bos_token": bos}))
    return directory


@cache
def smollm2_template() -> str:
    reader = GGUFReader(find_gguf())
    field = reader.fields["tokenizer.chat_template"]
    return str(bytes(field.parts[field.data[0]]), encoding="utf-8")


def rendered(template: ChatTemplate, process: TemplateProcess, **more: Any) -> str:
    asked: dict[str, Any] = {"tools": None, "add_generation_prompt": True, "values": {}} | more
    messages = asked.pop("messages", TALK)
    return replace(template, process=process).render(messages, **asked)


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("name", [*TEMPLATES, "SmolLM2"])
def test_the_text_is_that_of_transformers(
    tmp_path: Path, process: TemplateProcess, name: str, tools: Any, add_generation_prompt: bool
) -> None:
    source = smollm2_template() if name == "SmolLM2" else TEMPLATES[name]
    directory = model_directory(tmp_path, source)
    tokenizer = AutoTokenizer.from_pretrained(directory)

    for messages in (TALK, TALK[1:]):
        wanted = tokenizer.apply_chat_template(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            more="yes",
        )
        seen = rendered(
            load_chat_template(str(directory)),
            process,
            messages=messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            values={"more": "yes"},
        )
        assert seen == wanted
        assert len(seen) > 20


def test_smollm2_writes_its_turns(tmp_path: Path, process: TemplateProcess) -> None:
    template = load_chat_template(str(model_directory(tmp_path, smollm2_template())))

    text = rendered(template, process, messages=[{"role": "user", "content": "Hi"}])

    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_the_time_is_now(tmp_path: Path, process: TemplateProcess) -> None:
    template = load_chat_template(str(model_directory(tmp_path, "{{ strftime_now('%Y') }}")))
    years = {str(datetime.now().year), rendered(template, process), str(datetime.now().year)}
    assert len(years) <= 2
    assert rendered(template, process) in years


def configured(tmp_path: Path, template: object, **more: object) -> ChatTemplate:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **more}))
    return load_chat_template(str(tmp_path))


def test_a_template_of_the_configuration(tmp_path: Path, process: TemplateProcess) -> None:
    template = configured(tmp_path, "c{{ eos_token }}", eos_token=EOS_TOKEN)
    assert rendered(template, process) == f"c{EOS_TOKEN}"

    (tmp_path / "chat_template.jinja").write_text("f{{ eos_token }}")
    assert rendered(load_chat_template(str(tmp_path)), process) == f"f{EOS_TOKEN}"


def test_tools_choose_the_template_that_is_for_them(
    tmp_path: Path, process: TemplateProcess
) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    template = configured(tmp_path, named)
    assert rendered(template, process) == "d"
    assert rendered(template, process, tools=TOOLS) == "t"

    template = configured(tmp_path, named[1:])
    with pytest.raises(TemplateFailed, match="no default template, only tool_use"):
        rendered(template, process)


def test_special_tokens_of_the_old_file_count_too(tmp_path: Path, process: TemplateProcess) -> None:
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "<old>", "eos_token": "<o>"}')
    template = configured(tmp_path, "{{ bos_token }}{{ eos_token }}", eos_token="<new>")
    assert rendered(template, process) == "<old><new>"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("tokenizer_config.json", b"{", "cannot be read"),
        ("tokenizer_config.json", b"[]", "cannot be read"),
        ("tokenizer_config.json", b'{"chat_template": 3}', "chat_template in tokenizer_config"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "x"}]}', "template"),
        ("chat_template.jinja", b"\xff\xfe", "cannot be read"),
        ("other.txt", b"", "no chat template"),
    ],
)
def test_what_is_no_template_is_a_reason_and_no_failure(
    tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    (tmp_path / name).write_bytes(content)
    template = load_chat_template(str(tmp_path))

    with pytest.raises(TemplateFailed, match=why):
        template.render([], tools=None, add_generation_prompt=True, values={})


def test_without_a_directory_there_is_none() -> None:
    assert "no model directory" in str(load_chat_template(None).problem)
    assert "no chat template" in str(load_chat_template("/nonexistent").problem)


def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "chat_template.jinja").open("wb") as file:
        file.truncate(33 * 1024 * 1024)
    assert "wanted at most" in str(load_chat_template(str(tmp_path)).problem)
