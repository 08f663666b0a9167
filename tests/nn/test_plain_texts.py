"""What the packaged checkpoints, and tokenizers of imported ones, read of texts as people write them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from services.core.errors import InvalidField
from services.core.store.checkpoint_files import packaged_starters
from services.embed.model.focallens_engine import FocalLensEngine
from services.embed.model.plain_engine import PlainEngine
from services.generate.engine import EngineOptions, GenerateEngine
from services.generate.generation.generation import AnswerOptions
from services.generate.prompts.templates import Document
from services.nn.clip_texts import Text
from services.nn.devices import DeviceOptions
from services.nn.loading import transformers
from services.nn.plain_texts import PlainTexts
from services.predict.engine import PredictEngine
from services.score.engine import ScoreEngine
from tests.published_clips import write_siglip, write_xlm_roberta
from tests.published_instructblip import write_instructblip
from tests.published_llava import write_llava
from tests.published_models import LANGUAGE_MODELS, T5S, publish
from tests.published_qwen3_vl import write_qwen3_vl_embedding

STARTERS = {directory.name: directory for directory in packaged_starters()}
CPU = DeviceOptions(device="cpu", dtype="float32")
PLAIN = 'Zo\u00eb said "the first file has 63 red cubes" - it\'s fine/good'
# Each is PLAIN as somebody writes it.
FORMS = {
    "CR LF at the end": PLAIN + "\r\n",
    "three spaces at the end": PLAIN + "   ",
    "a tab at the beginning": "\t" + PLAIN,
    "two spaces": PLAIN.replace(" the", "  the"),
    "a line break": PLAIN.replace(" the", "\nthe"),
    "CR LF": PLAIN.replace(" the", "\r\nthe"),
    "a tab": PLAIN.replace(" the", "\tthe"),
    "a vertical tab": PLAIN.replace(" the", "\vthe"),
    "a form feed": PLAIN.replace(" red", "\fred"),
    "a next line": PLAIN.replace(" red", "\x85red"),
    "a no-break space": PLAIN.replace(" ", "\xa0"),
    "a narrow no-break space": PLAIN.replace("63 ", "63\u202f"),
    "a thin space": PLAIN.replace("63 ", "63\u2009"),
    "an ideographic space": PLAIN.replace(" red", "\u3000red"),
    "a line separator": PLAIN.replace(" red", "\u2028red"),
    "a paragraph separator": PLAIN.replace(" red", "\u2029red"),
    "a zero-width space": PLAIN.replace("said", "sa\u200bid"),
    "a byte order mark": "\ufeff" + PLAIN,
    "a soft hyphen": PLAIN.replace("said", "sa\xadid"),
    "a word joiner": PLAIN.replace("said", "sa\u2060id"),
    "a zero-width joiner": PLAIN.replace("said", "sa\u200did"),
    "a left-to-right mark": PLAIN.replace("said", "said\u200e"),
    "a bidirectional override": PLAIN.replace("said", "\u202esaid\u202c"),
    "an isolate": PLAIN.replace("said", "\u2068said\u2069"),
    "a variation selector": PLAIN.replace("said", "said\ufe0e"),
    "a soft hyphen at the end of a line": PLAIN.replace("said", "sa\xad\n  id"),
    "a braille blank": PLAIN.replace(" red", "\u2800red"),
    "a null": PLAIN.replace("said", "said\x00"),
    "ligatures": PLAIN.replace("fi", "\ufb01"),
    "a decomposed accent": PLAIN.replace("\u00eb", "e\u0308"),
    "curly quotes": PLAIN.replace('"t', "\u201ct").replace('"', "\u201d"),
    "a curly apostrophe": PLAIN.replace("'", "\u2019"),
    "full-width digits": PLAIN.replace("63", "\uff16\uff13"),
    "full-width letters": PLAIN.replace("red", "\uff52\uff45\uff44"),
    "mathematical letters": PLAIN.replace("red", "\U0001d42b\U0001d41e\U0001d41d"),
    "an en dash": PLAIN.replace("-", "\u2013"),
    "a minus": PLAIN.replace("-", "\u2212"),
    "a no-break hyphen": PLAIN.replace("-", "\u2011"),
    "a fraction slash": PLAIN.replace("/", "\u2044"),
}
UNSEEN = "\u200b \xad\ufeff\r\n"


def student(name: str) -> Callable[[str], Any]:
    engine = PredictEngine.load(STARTERS[name], CPU)
    return lambda text: engine.prepare(dict.fromkeys(engine.description.fields, text)).label_ids


def reader(name: str) -> Callable[[str], Any]:
    processor = GenerateEngine.load(STARTERS[name], EngineOptions(CPU)).processor

    def prompts(text: str) -> Any:
        documents = [Document(text, text), Document(text)]
        messages = [{"role": "user", "content": text}]
        asked = processor.prepare_question(text, documents, AnswerOptions()).prompt
        answered = processor.prepare_chat(messages, documents, AnswerOptions()).prompt
        ranked = processor.prepare_ranking(text, documents, "calibrated").prompts
        likely = processor.prepare_ranking(text, documents, "query_likelihood").prompts
        return asked.input_ids, answered.input_ids, [one.input_ids for one in (*ranked, *likely)]

    return prompts


def tower(prepare: Callable[[str], Text]) -> Callable[[str], Any]:
    return lambda text: prepare(text).digest


READERS: dict[str, Callable[[], Callable[[str], Any]]] = {
    "inferences": lambda: student("inferences"),
    "word-problems": lambda: student("word-problems"),
    "open-facts": lambda: reader("open-facts"),
    "litm-facts": lambda: reader("litm-facts"),
    "focallens-shapes": lambda: tower(FocalLensEngine.load(STARTERS["focallens-shapes"], CPU).prepare_condition),
    "clip-shapes": lambda: tower(PlainEngine.load(STARTERS["clip-shapes"], CPU).prepare_text),
    "fsc-clip-scenes": lambda: tower(ScoreEngine.load(STARTERS["fsc-clip-scenes"], CPU).prepare_caption),
}


@pytest.mark.parametrize("name", READERS)
def test_a_starter_reads_every_form_of_a_text_alike(name: str) -> None:
    read = READERS[name]()
    plain = read(PLAIN)
    assert [form for form, text in FORMS.items() if read(text) != plain] == []
    assert read(PLAIN.replace("red", "blue")) != plain


FAMILIES: dict[str, Callable[[Path], object]] = {
    **{name: partial(publish, name=name) for name in (*LANGUAGE_MODELS, *T5S)},
    "siglip": write_siglip,
    "xlm-roberta": write_xlm_roberta,
    "llava": write_llava,
    "qwen3-vl-embedding": write_qwen3_vl_embedding,
    "instructblip": write_instructblip,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_imported_model_reads_every_form_alike_or_as_its_vocabulary_has_it(family: str, tmp_path: Path) -> None:
    FAMILIES[family](tmp_path / "model")
    folder = next(path.parent for path in sorted(tmp_path.rglob("tokenizer_config.json"), reverse=True))
    tokenizer = transformers().AutoTokenizer.from_pretrained(folder)
    plain_texts = PlainTexts.of(tokenizer)
    plain = tokenizer(PLAIN).input_ids
    for form, text in FORMS.items():
        read = plain_texts(text)
        assert tokenizer(read).input_ids == plain or read == text, form


@pytest.mark.parametrize("name", ["open-facts", "focallens-shapes", "fsc-clip-scenes"])
def test_a_text_without_anything_to_be_seen_is_refused(name: str) -> None:
    with pytest.raises(InvalidField, match=r"character that can be seen"):
        READERS[name]()(UNSEEN)


def test_what_a_vocabulary_has_a_token_for_is_left_as_it_is_written() -> None:
    pieces = PlainTexts(["▁the", "▁▁", "“", "ﬁ", "\u0301", "\u00a0"], [])
    bytes_ = PlainTexts(["Ġthe", "ĊĊ", "âĢľ", "ï¬ģ", "ÌģĠ", "ÂłĠ"], [])
    for text in ("a\n\n b  ", "“a", "\ufb01", "e\u0301", "a\u00a0b"):
        assert pieces(text) == bytes_(text) == text
    assert pieces("a\u2003b”\uff11") == bytes_("a\u2003b”\uff11") == 'a b"1'


def test_numbers_keep_their_meaning() -> None:
    plain = PlainTexts(["a"], [])
    for text in ("½", "1½", "m²", "①", "H₂O", "١٢"):
        assert plain(text) == text


def test_a_conversation_keeps_its_lines() -> None:
    plain = PlainTexts(["a"], [])
    assert plain.lines(" one\u00a0two \r\n\r\nthree\n") == "one two\n\nthree"
    assert PlainTexts(["  "], []).lines(" one \r\ntwo") == " one \r\ntwo"
