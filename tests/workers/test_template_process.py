"""Programs that strangers wrote as chat templates: each ends, in a line, and the next one works."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlboost_jax.data import chat_rendering
from rlboost_jax.data.chat_rendering import ChatRefused, TemplateTooCostly, rendered, values_of
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.workers import template_child, template_process
from rlboost_jax.workers.template_process import TemplateProcess

pytest.importorskip("jinja2")

VALUES = json.dumps({"messages": [{"role": "user", "content": "hello"}]})
HONEST = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
DOUBLED = "{% set ns = namespace(a='aa') %}", "{% set ns.a = ns.a + ns.a %}"
LOOP = "{% for i in range(99999) %}"
MEMORY, TIME, LENGTH = "MiB of memory", "s of processor time", "than 16,777,216 characters"


@pytest.fixture(scope="module")
def process() -> Iterator[TemplateProcess]:
    """The usual limits: on a slow host a GiB takes more than a second to fill."""
    process = TemplateProcess()
    yield process
    process.close()


@pytest.fixture(scope="module")
def hurried() -> Iterator[TemplateProcess]:
    process = TemplateProcess(cpu_seconds=1)
    yield process
    process.close()


@pytest.mark.parametrize(
    "template, limit",
    [
        ('{{ "a" * 2000000000 }}', MEMORY),
        ('{{ "%2000000000d" % 1 }}', MEMORY),
        ('{{ "a" | center(2000000000) }}', MEMORY),
        ('{{ "a\nb" | indent(2000000000) }}', MEMORY),
        ("{{ messages | tojson(indent=2000000000) }}", MEMORY),
        ("{{ ([0] * 1000000000) | length }}", MEMORY),
        (f"{DOUBLED[0]}{LOOP}{DOUBLED[1]}{{% endfor %}}", MEMORY),
        (LOOP + "{{ 'a' * 1000 }}{% endfor %}", LENGTH),
    ],
)  # fmt: skip
def test_what_goes_beyond_a_limit_ends_and_the_next_one_works(process, template, limit):
    kind, text, _ = process.render(template, VALUES)
    assert (kind, limit in text) == (b"", True), text
    assert process.render(HONEST, VALUES)[:2] == (template_child.TEXT, "<user>hello")


@pytest.mark.parametrize(
    "template",
    [
        LOOP * 2 + "{% endfor %}" * 2,
        "{{ 9 ** (9 ** 9) }}",
        "{{ (messages[0].content | length) ** (9 ** 9) }}",
    ],
)
def test_one_that_takes_too_long_ends_and_the_next_one_works(hurried, template):
    kind, text, _ = hurried.render(template, VALUES)
    assert (kind, TIME in text) == (b"", True), text
    assert hurried.render(HONEST, VALUES)[:2] == (template_child.TEXT, "<user>hello")


@pytest.mark.parametrize(
    "template, kind, words",
    [
        ("{% for i in range(1000000000) %}{% endfor %}", b"r", "OverflowError: Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", b"r", "RecursionError: "),
        ("{{ raise_exception('a' * 1000000) }}", b"r", "TemplateError: aaaa"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", b"r", "SecurityError: "),
        ("{{ ''['__cla' + 'ss__'].mro() }}", b"r", "SecurityError: "),
        ("{{ messages.append(1) }}", b"r", "SecurityError: "),
        ("{% include 'x' %}", b"r", "TypeError: no loader"),
        ("{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}", b"n", "RecursionError: "),
        ("{% for %}", b"n", "line 1: "),
    ],
)
def test_what_is_refused_says_why_in_few_words(process, template, kind, words):
    found, text, _ = process.render(template, VALUES)
    assert found == kind and text.startswith(words) and len(text) <= template_child.LETTERS


def test_a_template_reaches_no_file_process_or_network(process):
    """What the sandbox of programs drops is tested with it; here that the child is in it."""
    assert process.render(HONEST, VALUES).kind == template_child.TEXT
    lines = Path(f"/proc/{process._process.pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert status["Seccomp"] == "2" and status["NoNewPrivs"] == "1"
    assert int(status["CapEff"], 16) == 0


def test_a_process_that_somebody_ended_is_replaced(process):
    assert process.render(HONEST, VALUES).kind == template_child.TEXT
    os.kill(process._process.pid, signal.SIGKILL)
    assert process.render(HONEST, VALUES)[:2] == (template_child.TEXT, "<user>hello")


def test_one_that_is_stopped_does_not_stop_its_parent():
    process = TemplateProcess(wall_seconds=0.5)
    process.render("", "{}")
    os.kill(process._process.pid, signal.SIGSTOP)
    assert process.render(HONEST, VALUES)[:2] == (b"", "did not end in time")
    process.close()


def test_what_it_is_given_is_bounded_too(process):
    assert "was given 16,777" in process.render("", "x" * (2**24 + 1)).text


def test_any_text_passes_through(process):
    text = "ü ☃ \0 \ud800 \U0010ff1d\r\n"
    values = json.dumps({"messages": [{"role": "user", "content": text}]})
    assert process.render("{{ messages[0].content }}", values).text == text


def test_a_template_that_is_always_too_costly_is_a_mistake_of_the_run(process, monkeypatch):
    monkeypatch.setattr(template_process, "PROCESS", process)
    template = '{{ "a" * 2000000000 }}'
    line = r"a template in x/tokenizer_config.json wanted more than 1024 MiB of memory; .* may take"
    with pytest.raises(ConfigError, match=line) as error:
        rendered(template, VALUES, "a template in x/tokenizer_config.json")
    assert "\n" not in str(error.value)
    costly = "{% if messages[0].content == 'hello' %}" + template + "{% endif %}"
    with pytest.raises(TemplateTooCostly, match=r"data.chat_template wanted more than"):
        rendered(costly, VALUES, "data.chat_template")
    assert rendered(costly, chat_rendering._PROBE, "data.chat_template") == ""


def test_values_that_are_not_json_are_refused():
    with pytest.raises(ChatRefused, match="TypeError: "):
        values_of({"messages": [{"role": "user", "content": object()}]})
