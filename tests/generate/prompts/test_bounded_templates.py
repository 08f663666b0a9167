"""Chat templates are programs by a checkpoint's author: none may run for long, or use unbounded memory."""

import copy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.core.errors import DeadlineExceeded, FoveaError, InvalidRequest, Overloaded, TooLarge
from services.generate.engine import EngineOptions, GenerateEngine
from services.generate.prompts.bounded_templates import BoundedTemplates, TemplateLimits
from services.generate.prompts.chat import render_chat
from services.nn.devices import DeviceOptions
from tests.generate.small_tokenizers import byte_level
from tests.generate.tiny_models import save_tiny

pytestmark = pytest.mark.process

MESSAGES = [{"role": "user", "content": "who?"}]
PLAIN = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
# a sandbox allows ranges of 100,000 numbers
NESTED = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS = {
    "nested loops": NESTED,
    "nested loops that write": NESTED.replace("{% endfor %}", "x{% endfor %}", 1),
    "a search that goes back": "{{ ('a' * 40) | replace('a', 'aa') | wordwrap(1) | length }}" + NESTED,
    "a power": "{{ (7 ** (7 ** 9)) | string | length }}" + NESTED,
}
HUGE = {
    "a repeated string": "{{ 'ab' * 2**30 }}",
    "a string never written": "{% set x = 'ab' * 2**30 %}{{ messages[0].content }}",
    "a list": "{% set x = [0] * 10**9 %}{{ x | length }}",
    "a doubling": "{% set n = namespace(s='a') %}{% for i in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{n.s}}",
    "written piece by piece": "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
}


@pytest.fixture
def templates() -> Iterator[BoundedTemplates]:
    templates = BoundedTemplates(TemplateLimits(cpu_s=1, max_characters=1_000_000))
    yield templates
    templates.close()


@pytest.fixture
def patient() -> Iterator[BoundedTemplates]:
    """A slow machine fills the memory that a template may take in seconds."""
    templates = BoundedTemplates(TemplateLimits(cpu_s=60, wall_s=120, max_characters=1_000_000))
    yield templates
    templates.close()


def with_template(template: str) -> Any:
    tokenizer = copy.deepcopy(byte_level())
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize(
    "template",
    [
        PLAIN,
        "{% generation %}{{ messages[0].content }}{% endgeneration %}",
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}",
        "{{ documents | tojson(indent=2) }}{{ messages | tojson }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{% if add_generation_prompt %}{{ eos_token }}{% endif %}{{ documents is none }}{{ tools is none }}",
        "  {% if true %}  \n x {%- endif %}\n",
    ],
)
def test_what_is_rendered_is_what_transformers_renders(templates: BoundedTemplates, template: str) -> None:
    tokenizer = with_template(template)
    messages = [*MESSAGES, {"role": "assistant", "content": "ä \ud800 \U000f0001 </s>"}]
    documents = [{"title": "t", "text": "x\n"}]

    for given in ([], documents):
        expected = tokenizer.apply_chat_template(
            messages, documents=given or None, tokenize=False, add_generation_prompt=True
        )
        found = templates.render(tokenizer.get_chat_template(), messages, given, tokenizer.special_tokens_map)
        assert found == expected


@pytest.mark.parametrize("template", ENDLESS.values(), ids=ENDLESS)
def test_a_template_that_goes_on_is_ended_and_the_next_one_rendered(templates: BoundedTemplates, template: str) -> None:
    with pytest.raises((DeadlineExceeded, InvalidRequest)):
        templates.render(template, MESSAGES, [], {"bos_token": "<s>"})

    assert templates.render(PLAIN, MESSAGES, [], {"bos_token": "<s>"}) == "<s>user: who?\n"


@pytest.mark.parametrize("template", HUGE.values(), ids=HUGE)
def test_a_template_that_grows_is_refused_and_the_next_one_rendered(patient: BoundedTemplates, template: str) -> None:
    with pytest.raises(InvalidRequest, match="exceeds the checkpoint's chat template's limit") as refused:
        patient.render(template, MESSAGES, [], {"bos_token": "<s>"})

    assert refused.value.code == "chat_template_too_long"
    assert patient.render(PLAIN, MESSAGES, [], {"bos_token": "<s>"}) == "<s>user: who?\n"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "Expected"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.nothing.at_all }}", "has no attribute"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_what_a_template_raises_is_told_to_whoever_wrote_the_conversation(
    templates: BoundedTemplates, template: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"refuses this conversation: .*{message}"):
        templates.render(template, MESSAGES, [], {})


def test_other_templates_are_rendered_while_one_goes_on(templates: BoundedTemplates) -> None:
    templates.render(PLAIN, MESSAGES, [], {})
    found: list[FoveaError] = []

    def render_endlessly() -> None:
        try:
            templates.render(NESTED, MESSAGES, [], {})
        except FoveaError as error:
            found.append(error)

    rendering = threading.Thread(target=render_endlessly)
    rendering.start()
    assert templates.render(PLAIN, MESSAGES, [], {}) == "user: who?\n"
    rendering.join()
    assert isinstance(found[0], DeadlineExceeded)


def test_whoever_waits_too_long_for_others_is_told_to_come_back() -> None:
    templates = BoundedTemplates(TemplateLimits(num_processes=1, wait_s=0.01, cpu_s=1))
    rendering = threading.Thread(target=pytest.raises, args=(DeadlineExceeded, templates.render, NESTED, [], [], {}))
    rendering.start()
    try:
        with pytest.raises(Overloaded):
            while rendering.is_alive():
                templates.render(PLAIN, MESSAGES, [], {})
    finally:
        rendering.join()
        templates.close()


def test_a_process_that_others_killed_is_replaced_and_nobody_is_told(templates: BoundedTemplates) -> None:
    templates.render(PLAIN, MESSAGES, [], {})
    for process in templates._idle:
        process._process.kill()
        process._process.wait()

    assert templates.render(PLAIN, MESSAGES, [], {}) == "user: who?\n"


def test_a_conversation_whose_template_goes_on_gets_an_error_that_names_the_limit() -> None:
    with pytest.raises(DeadlineExceeded, match="did not finish within 2 s of processor time") as refused:
        render_chat(with_template(NESTED), MESSAGES)
    assert (refused.value.param, refused.value.code) == ("messages", "chat_template_timeout")


@pytest.mark.parametrize(
    ("template", "error"),
    [
        (NESTED, DeadlineExceeded),
        (HUGE["a repeated string"], InvalidRequest),
        ("{{ messages[0].content }}{{ 'a b ' * 10**6 }}", TooLarge),
    ],
)
def test_a_checkpoint_whose_template_knows_no_end_does_not_warm_up(
    tmp_path: Path, template: str, error: type[FoveaError]
) -> None:
    engine = GenerateEngine.load(save_tiny(tmp_path), EngineOptions(device=DeviceOptions("cpu")))
    engine.processor.tokenizer.chat_template = template

    with pytest.raises(error):
        engine.warm_up()
