"""Each rule on a text that follows it and one that does not."""

from __future__ import annotations

from typing import Any

import pytest

from orchestration.evaluation.benchmarks import detect_language
from policies.graders.ifeval import LANGUAGE_RULES, RULES, UnknownInstruction, grade

CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("keywords:existence", {"keywords": ["red", "blue"]}, "Red and BLUE.", "Red only."),
    ("keywords:frequency", {"keyword": "cat", "frequency": 2, "relation": "at least"}, "Cat, cat", "cat"),
    ("keywords:frequency", {"keyword": "cat", "frequency": 2, "relation": "less than"}, "cat", "cat cat"),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "A category.", "A cat."),
    ("keywords:letter_frequency", {"letter": "q", "let_frequency": 2, "let_relation": "at least"}, "Qq", "q"),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, "One. Two!", "One."),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}, "It is 3.5 m.", "A. B. C."),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One\n***\nTwo", "One\n\nTwo"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "one two three", "one two"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        "First it rains.\n\nThen, it stops.",
        "First it rains.\n\nIt stops.",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] at [place]", "[name]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\nP.S. Write.", "Bye."),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Bye.\nP.P.S Write.", "Bye.\nP.S. Write."),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n**b**"),
    ("detectable_format:constrained_response", {}, "My answer is maybe.", "Maybe."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*one* and *two*", "*one* only"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        "SECTION 1\na\nSECTION 2\nb",
        "SECTION 1\na",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<A day>>\nIt was.", "A day"),
    ("combination:two_responses", {}, "One.\n******\nTwo.", "One.\n******\nOne."),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi."}, "say hi. Hi!", "Hi!"),
    ("startend:end_checker", {"end_phrase": "That is all."}, "So. that is all.", "That is all. Or not."),
    ("startend:quotation", {}, '"Quoted."', '"Half.'),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        "STOP it NOW",
        "STOP it",
    ),
    ("change_case:english_capital", {}, "THIS IS AN ENGLISH SENTENCE.", "This is an English sentence."),
    ("change_case:english_lowercase", {}, "this is an english sentence.", "This is an English sentence."),
    ("language:response_language", {"language": "de"}, "Das ist ein deutscher Satz.", "This is an English sentence."),
    ("punctuation:no_comma", {}, "No stops", "One, two"),
]


@pytest.mark.parametrize(("instruction", "arguments", "good", "bad"), CASES)
def test_a_rule_holds_for_one_text_and_not_for_the_other(
    instruction: str, arguments: dict[str, Any], good: str, bad: str
) -> None:
    padded = arguments | {"nothing": None}  # the data set pads with None
    assert grade(good, [instruction], [padded], detect_language).strict == (True,)
    assert grade(bad, [instruction], [padded], detect_language).strict == (False,)


@pytest.mark.parametrize("astray", ["\n", "[", "<<", " ", "*", "```json\n", "a "])
def test_no_rule_hangs_on_a_model_that_repeats_itself_until_it_is_cut_off(astray: str) -> None:
    for name, arguments, _, bad in CASES:
        if name in RULES:
            text = "```json" + astray * 30_000 + bad
            assert len(grade(text, [name], [arguments], detect_language).loose) == 1  # it has ended


def test_every_rule_has_a_case() -> None:
    assert {*RULES, *LANGUAGE_RULES} == {name for name, *_ in CASES}


def test_loose_forgives_a_remark_and_markup() -> None:
    response = "Sure, here it is:\nno commas at all"
    followed = grade(response, ["punctuation:no_comma"], [{}], detect_language)
    assert (followed.strict, followed.loose) == ((False,), (True,))


def test_an_empty_response_follows_nothing() -> None:
    assert grade(" \n", ["punctuation:no_comma"], [{}], detect_language) == ((False,), (False,))


def test_an_unknown_instruction_is_refused() -> None:
    with pytest.raises(UnknownInstruction, match="no:such"):
        grade("text", ["no:such"], [{}], detect_language)
